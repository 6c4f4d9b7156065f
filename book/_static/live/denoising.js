// A DANP that answers: one pass for the context, then F more for each sample (danp_lib/models/danp.py).
(function (DANP) {
  "use strict";
  const VARIANCE_FLOOR = 1e-6;
  const KNOWN_VARIANCE = 1e-8;
  const MOST_TARGETS = 257; // of one prediction, as the sampler asks for them

  class Model {
    constructor(kernels, config, weights) {
      Object.assign(this, { kernels, config });
      this.grid = new DANP.setconv.Grid(config);
      this.scales = Array.from(weights["core.encoder.log_scale"].values, Math.exp);
      this.unet = new DANP.UNet(kernels, weights, { ...config, numSets: config.numLevels + 1 });
      this.head = new DANP.Head(kernels, weights, config, MOST_TARGETS + config.numLevels * config.numAuxiliary);
    }

    #encode(points, level, encoding) {
      DANP.setconv.encodeSet(
        this.grid, this.scales[level], points, encoding, 2 * (this.config.numLevels + 1), 2 * level);
    }

    /** What all samples for a context {x, y} share. */
    prepare(context) {
      const encoding = new Float32Array(this.grid.length * this.unet.inputChannels);
      this.#encode(context, 0, encoding);
      const at = this.unet.run(encoding);
      const features = this.kernels.heap.floats.slice(at, at + this.grid.length * this.config.channels);
      return { context, encoding, features };
    }

    /**
     * Denoise from level F down to `level`, and predict that level at the inputs xt.
     * `draws` are the inputs and the noise of the levels 1 to F: see DANP.drawNoise.
     * Returns {sets}, from level 1 on with gaps below `level`, and the target's loc, diag, factor.
     */
    denoise(prepared, draws, xt, level = 0) {
      const { config, unet, head, kernels } = this, encoding = prepared.encoding.slice();
      const sets = [];
      let features = unet.outputs[0];
      kernels.heap.floats.set(prepared.features, features);
      for (let f = config.numLevels; f > Math.max(0, level - 1); f--) {
        const x = draws.inputs[f - 1], count = x.length;
        // The level asked for is predicted from the noisier ones, so its targets come before its own set.
        const inputs = f === level ? [...x, ...xt] : x;
        const hidden = head.hidden(features, inputs);
        const predictive = head.gaussian(hidden, 0, count, f, VARIANCE_FLOOR);
        sets[f - 1] = { x, y: transform(predictive, draws.noise[f - 1], config.rank) };
        if (f === level)
          return { sets, ...head.gaussian(hidden, count, xt.length, f, VARIANCE_FLOOR) };
        this.#encode(sets[f - 1], f, encoding);
        features = unet.run(encoding);
      }
      return { sets, ...this.#clean(features, [prepared.context, ...sets], xt) };
    }

    // The clean level, conditioned on every known point if the model is so set up.
    #clean(features, known, xt) {
      const { head, config } = this;
      if (!config.conditioned || config.rank === 0) known = [];
      const inputs = [...xt];
      for (const { x } of known.slice(1)) inputs.push(...x);
      const hidden = head.hidden(features, inputs);
      const target = head.gaussian(hidden, 0, xt.length, 0, VARIANCE_FLOOR);
      let first = xt.length;
      const given = known.map(({ x, y }, level) => {
        if (level === 0) return [head.precise(features, x, KNOWN_VARIANCE), y];
        const gaussian = head.gaussian(hidden, first, x.length, level, KNOWN_VARIANCE);
        first += x.length;
        return [gaussian, y];
      });
      if (!given.some(([, y]) => y.length)) return target;
      return DANP.algebra.condition(target, given, config.rank, config.maxChiSquare);
    }
  }

  /** A sample of a Gaussian from standard normal numbers, one an output and then one a shared variable. */
  function transform({ loc, diag, factor }, noise, rank) {
    return Float32Array.from(loc, (mean, i) =>
      mean + Math.sqrt(diag[i]) * noise[i] + DANP.algebra.dot(factor, i * rank, noise, loc.length, rank));
  }

  /** The inputs and the noise of one sample; the same for the same seed and number, whatever the context. */
  DANP.drawNoise = function ({ domain, numLevels, numAuxiliary, rank }, seed, sample) {
    const { uniform, normal } = DANP.randomness(seed, sample);
    const fill = (length, draw) => Float32Array.from({ length }, draw);
    const levels = Array.from({ length: numLevels });
    return {
      inputs: levels.map(() =>
        fill(numAuxiliary, () => domain[0] + (domain[1] - domain[0]) * uniform())),
      noise: levels.map(() => fill(numAuxiliary + rank, normal)),
      shared: fill(rank, normal), // for a joint sample of the clean level
    };
  };

  /** A model whose script is loaded. {simd: false} asks for plain JavaScript. */
  DANP.createModel = async function (name, options) {
    const script = DANP.models[name];
    if (!script) throw new Error(`no model ${name}: its script is not loaded`);
    return new Model(await DANP.makeKernels(options), script.config, DANP.decodeWeights(script));
  };
})((globalThis.DANP = globalThis.DANP || {}));
