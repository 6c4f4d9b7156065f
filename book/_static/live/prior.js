// The best possible answer: functions of a prior, before and after points of one of them are known.
(function (DANP) {
  "use strict";
  const { make, choice, count, follow, number } = DANP.parts;
  const DRAWS = [1, 4, 16, 64], MOST_POINTS = 12;

  class Prior {
    constructor(state, el) {
      this.el = el;
      this.seed = state.get("seed") ?? 0;
      this.points = [];
      this.build();
      this.begin();
    }

    build() {
      const kinds = Object.entries(DANP.priors).map(([name, { title }]) => [name, title]);
      this.canvas = make("canvas", { role: "img" });
      this.frame = make("div", { className: "danp-plot danp-still" }, this.canvas);
      this.plot = new DANP.Plot(this.canvas);
      this.kind = choice(kinds, "sawtooth");
      this.draws = choice(DRAWS.map((value) => [value, String(value)]), 16);
      this.truth = make("input", { type: "checkbox" });
      this.reveal = make("button", { type: "button" }, "Reveal a point");
      this.other = make("button", { type: "button" }, "Another function");
      this.status = make("p", { className: "danp-status", role: "status" });
      const fields = [["Data", this.kind], ["Functions", this.draws], ["Show the hidden one", this.truth]];
      const tools = make("div", { className: "danp-tools" },
        ...fields.map((parts) => make("label", {}, ...parts)), make("div", {}, this.reveal, this.other));
      this.legend = make("p", { className: "danp-legend" },
        make("span", { className: "danp-of-context" }, "points of the hidden function"),
        (this.drawsKey = make("span", { className: "danp-of-exact" })),
        (this.truthKey = make("span", { className: "danp-of-truth" }, "the hidden function")));
      this.el.replaceChildren(tools, this.frame, this.legend, this.status);
      this.el.setAttribute("aria-label", "Functions of a prior, and those that points leave");
      this.kind.addEventListener("input", () => this.begin());
      this.other.addEventListener("click", () => { this.seed += 1; this.begin(); });
      for (const input of [this.draws, this.truth]) input.addEventListener("input", () => this.draw());
      this.reveal.addEventListener("click", () => {
        const { domain: [low, high] } = this.prior;
        this.add(low + (high - low) * (0.05 + 0.9 * this.random.uniform()));
      });
      this.canvas.addEventListener("click", (e) => {
        const { left, top } = this.canvas.getBoundingClientRect();
        this.add(this.plot.fromPage(e.clientX - left, e.clientY - top)[0]);
      });
      const layout = () => { if (this.plot.resize()) this.draw(); };
      this.unfollow = follow(this.frame, layout, () => this.draw());
    }

    destroy() {
      this.unfollow();
    }

    get prior() {
      return DANP.priors[this.kind.value].defaults;
    }

    /** A new hidden function, of which nothing is known. */
    begin() {
      this.random = DANP.randomness(this.seed, 1);
      this.hidden = DANP.priors[this.kind.value].draw(this.prior, this.random);
      this.points = [];
      this.draw();
    }

    /** Make the hidden function known at x. */
    add(x) {
      const { domain: [low, high] } = this.prior;
      if (x < low || x > high || this.points.length >= MOST_POINTS) return;
      const at = this.hidden.snap?.(x) ?? x;
      if (!this.points.some(([known]) => known === at)) this.points.push([at, this.hidden.at(at)]);
      this.draw();
    }

    /** Functions drawn from the posterior; for waves, with how many are left, in words. */
    sample() {
      const points = { x: this.points.map((p) => p[0]), y: this.points.map((p) => p[1]) };
      const size = Number(this.draws.value), random = DANP.randomness(this.seed, 2);
      if (this.kind.value === "gp") {
        const sd = DANP.posterior(points, this.prior).sd;
        const mean = sd.reduce((a, b) => a + b, 0) / sd.length, opacity = Math.max(0.2, size ** -0.5);
        return {
          drawn: DANP.exact.drawGP(points, this.prior, size, random).map((f) => [f, opacity]),
          left: `the standard deviation is ${number(mean)} on average`,
        };
      }
      const found = DANP.posterior(points, this.prior);
      return found.waves
        ? { drawn: DANP.exact.shown(found, size, random.uniform), left: DANP.exact.describe(found) }
        : { drawn: [], left: found.why };
    }

    draw() {
      const { drawn, left } = this.sample(), known = this.points.length;
      this.shown = drawn;
      this.drawsKey.textContent = known ? "functions of the exact posterior" : "functions of the prior";
      this.truthKey.hidden = !this.truth.checked;
      if (known >= MOST_POINTS && document.activeElement === this.reveal) this.other.focus({ preventScroll: true });
      this.reveal.disabled = known >= MOST_POINTS;
      this.status.textContent = known
        ? `${count(known, "point")} known: ${left}.`
        : "Nothing is known yet. Click in the plot, or press the button, to learn a point of the hidden function.";
      this.canvas.setAttribute("aria-label", `${count(drawn.length, "function")}. ${this.status.textContent}`);
      this.plot.setRanges(this.prior.domain, DANP.priors[this.kind.value].yRange, null);
      if (!this.plot.width) return;
      this.plot.draw({ functions: drawn, points: this.points, truth: this.truth.checked ? this.hidden : null });
    }
  }

  DANP.widgets.prior = Prior;
})((globalThis.DANP = globalThis.DANP || {}));
