// What noising does to a function (danp_lib/data/noising.py): beta, the number of levels, and the level on view.
// The noise of each step stays the same while beta changes.
(function (DANP) {
  "use strict";
  const { make, choice, slider, number, follow } = DANP.parts;
  const MOST_LEVELS = 10, POINTS = 300;

  /** Of y_level given y_0: its factor, and the variance of the noise. */
  const schedule = (beta, level) => ({
    signal: (1 - beta) ** (level / 2),
    variance: -beta * Math.expm1(level * Math.log1p(-beta)),
  });

  class Noising {
    constructor(state, el) {
      this.el = el;
      this.seed = state.get("seed") ?? 0;
      this.build();
      this.draw();
    }

    build() {
      const kinds = Object.entries(DANP.priors).map(([name, { title }]) => [name, title]);
      this.canvas = make("canvas", { role: "img" });
      this.frame = make("div", { className: "danp-plot danp-still" }, this.canvas);
      this.plot = new DANP.Plot(this.canvas);
      this.kind = choice(kinds, "sawtooth");
      this.beta = slider(0.01, 0.99, 0.005, 0.085);
      this.numLevels = slider(1, MOST_LEVELS, 1, 3);
      this.level = slider(0, 3, 1, 3);
      this.beta.setAttribute("aria-label", "β, noise of one step");
      this.numLevels.setAttribute("aria-label", "F, number of levels");
      this.clean = make("input", { type: "checkbox", checked: true });
      this.other = make("button", { type: "button" }, "Another function");
      this.status = make("p", { className: "danp-status", role: "status" });
      const shown = () => make("span", { className: "danp-level" });
      const fields = [
        ["Data", this.kind],
        ["β", this.beta, (this.betaText = shown())],
        ["F", this.numLevels, (this.numLevelsText = shown())],
        ["Level", this.level, (this.levelText = shown())],
        ["Show the function", this.clean],
      ];
      const tools = make("div", { className: "danp-tools" },
        ...fields.map((parts) => make("label", {}, ...parts)), make("div", {}, this.other));
      this.legend = make("p", { className: "danp-legend" },
        (this.dotsKey = make("span", { className: "danp-of-dots" })),
        (this.cleanKey = make("span", { className: "danp-of-exact" }, "the function, level 0")));
      this.el.replaceChildren(tools, this.frame, this.legend, this.status);
      this.el.setAttribute("aria-label", "A function and its noised levels");
      for (const input of [this.kind, this.beta, this.level, this.clean])
        input.addEventListener("input", () => this.draw());
      this.numLevels.addEventListener("input", () => {
        // Whoever looks at the last level goes on to look at the last.
        const last = this.level.value === this.level.max;
        this.level.max = this.numLevels.value;
        if (last) this.level.value = this.level.max;
        this.draw();
      });
      this.other.addEventListener("click", () => { this.seed += 1; this.draw(); });
      const layout = () => { if (this.plot.resize()) this.draw(); };
      this.unfollow = follow(this.frame, layout, () => this.draw());
    }

    destroy() {
      this.unfollow();
    }

    /** The function, and the level's values at evenly spread inputs. */
    noised() {
      const { draw, defaults } = DANP.priors[this.kind.value], random = DANP.randomness(this.seed);
      const f = draw(defaults, random), [low, high] = defaults.domain;
      const beta = Number(this.beta.value), level = Number(this.level.value);
      const x = Array.from({ length: POINTS }, (_, i) => low + ((high - low) * i) / (POINTS - 1));
      const y = x.map((u) => {
        let value = f.at(u);
        for (let step = 0; step < MOST_LEVELS; step++) {
          const noise = random.normal();
          if (step < level) value = Math.sqrt(1 - beta) * value + beta * noise;
        }
        return value;
      });
      return { f, x, y, beta, level };
    }

    draw() {
      const { f, x, y, beta, level } = this.noised(), last = Number(this.numLevels.value);
      const { domain, yRange } = { ...DANP.priors[this.kind.value], ...DANP.priors[this.kind.value].defaults };
      const { signal, variance } = schedule(beta, level), reach = 2.6 * Math.sqrt(schedule(beta, last).variance);
      this.betaText.textContent = number(beta, 3);
      this.numLevelsText.textContent = String(last);
      this.levelText.textContent = level ? `${level} of ${last}` : "0 (clean)";
      this.level.setAttribute("aria-valuetext", this.levelText.textContent);
      this.dotsKey.textContent = level ? `level ${level}` : "level 0";
      this.cleanKey.hidden = !this.clean.checked;
      const factor = signal.toPrecision(2), left = level ? `${factor} times the function` : "the function itself";
      this.status.textContent = `Level ${level} is ${left}` +
        (level ? `, plus noise of variance ${number(variance, 3)} (standard deviation ${number(Math.sqrt(variance))}).` : ".");
      this.canvas.setAttribute("aria-label", this.status.textContent);
      this.shown = { x, y, signal, variance };
      this.plot.setRanges(domain, [yRange[0] - reach, yRange[1] + reach], null);
      if (!this.plot.width) return;
      this.plot.draw({ sets: [{ x, y }], functions: this.clean.checked ? [[f, 1]] : [] });
    }
  }

  DANP.widgets.noising = Noising;
})((globalThis.DANP = globalThis.DANP || {}));
