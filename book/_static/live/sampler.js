// Samples for the points on the page, a few at a time so that the page stays awake. Each sample keeps its
// inputs and its noise while points move: curves bend and do not flicker.
(function (DANP) {
  "use strict";
  const SLICE = 16; // milliseconds of work before the page may draw
  const FRAME = 36; // milliseconds for the samples of one picture while a point is being dragged

  /** What is known of a model's data by its name or configuration; `prior` is null where nothing is. */
  DANP.describe = function (name) {
    const { prior = null } = DANP.models[name]?.config ?? {};
    const kind = DANP.priors[DANP.models[name] ? prior?.name : name.replace(/^danp-(f2-)?/, "")];
    const about = { title: kind?.title ?? name, yRange: kind?.yRange ?? [-3, 3], jump: kind?.jump ?? Infinity };
    return { ...about, prior: prior ?? (DANP.models[name] ? null : kind?.defaults ?? null) };
  };

  DANP.Sampler = class Sampler {
    #ask = null; // what is to be answered
    #pace = 10; // milliseconds a sample, as measured
    #few = 3; // samples while a point is being dragged
    #running = false;
    #draws = new Map();
    #channel = new MessageChannel();
    #waiting = [];

    /** @param {(answer) => void} report  Called after every slice, and with answer.done at the end. */
    constructor(model, name, report) {
      Object.assign(this, { model, report });
      this.about = DANP.describe(name);
      const [low, high] = model.config.domain, steps = 256;
      this.xt = Float64Array.from({ length: steps + 1 }, (_, i) => low + ((high - low) * i) / steps);
      this.#channel.port1.onmessage = () => this.#work();
    }

    /** Answer {points, seed, samples, level, hurry}; what is under way for an earlier question is dropped. */
    ask(question) {
      if (question.seed !== this.#ask?.seed) this.#draws.clear();
      const key = JSON.stringify([question.points, question.seed, question.level]);
      // The same points again, with more samples or at leisure: what was drawn stays.
      const answer = this.#ask?.key === key ? this.#ask.answer : null;
      // Two to four, if the machine can; the same number throughout a drag.
      if (!this.#ask?.hurry) this.#few = Math.max(this.#pace < 40 ? 2 : 1, Math.min(4, Math.floor(FRAME / this.#pace)));
      this.#ask = { ...question, key, answer };
      if (!this.#running) {
        this.#running = true;
        this.#soon();
      }
    }

    /** A promise of the next finished answer; at once if nothing is under way. */
    idle() {
      if (!this.#running) return Promise.resolve(this.#ask?.answer);
      return new Promise((resolve) => this.#waiting.push(resolve));
    }

    stop() {
      this.#ask = null;
      this.#channel.port1.close();
    }

    #soon() {
      if (this.#ask.hurry) requestAnimationFrame(() => this.#work());
      else this.#channel.port2.postMessage(null);
    }

    #work() {
      const ask = this.#ask;
      if (!ask) return;
      const began = performance.now();
      ask.answer ??= this.#begin(ask);
      const { answer } = ask, wanted = ask.hurry ? Math.min(this.#few, ask.samples) : ask.samples;
      answer.curves.length = answer.sets.length = Math.min(answer.curves.length, ask.samples);
      while (answer.curves.length < wanted) {
        const started = performance.now();
        this.#sample(ask);
        this.#pace += 0.2 * (performance.now() - started - this.#pace);
        if (!ask.hurry && performance.now() - began > SLICE) break;
      }
      answer.done = answer.curves.length >= wanted;
      answer.wanted = wanted;
      answer.hurried = Boolean(ask.hurry);
      answer.milliseconds += performance.now() - began;
      this.report(answer);
      if (!answer.done) return this.#soon();
      this.#running = false;
      for (const resolve of this.#waiting.splice(0)) resolve(answer);
    }

    #begin({ points, level }) {
      const context = { x: points.map((p) => p[0]), y: points.map((p) => p[1]) };
      const prepared = this.model.prepare(context);
      return { xt: this.xt, prepared, level, curves: [], sets: [], milliseconds: 0 };
    }

    #sample({ answer, seed, level }) {
      const { config } = this.model, index = answer.curves.length;
      if (!this.#draws.has(index)) this.#draws.set(index, DANP.drawNoise(config, seed, index));
      const draws = this.#draws.get(index);
      const found = this.model.denoise(answer.prepared, draws, this.xt, level);
      answer.sets.push(level ? found.sets[level - 1] : null);
      // At a noisy level its mean; at level 0 a joint sample, but for the noise of each value by itself.
      const { rank } = config;
      answer.curves.push(level ? found.loc : found.loc.map((mean, i) =>
        mean + DANP.algebra.dot(found.factor, i * rank, draws.shared, 0, rank)));
    }
  };
})((globalThis.DANP = globalThis.DANP || {}));
