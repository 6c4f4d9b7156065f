// A trained model that answers: points to click and drag, its samples through them, and the exact posterior.
(function (DANP) {
  "use strict";
  const DATA = ["danp-sawtooth", "danp-square", "danp-gp"];
  const FIRST_POINTS = {
    sawtooth: [[-0.06, 0.9], [0.52, 0.92]],
    square: [[-1, 0], [-0.2, 1], [0.9, 0]],
    gp: [[-1.3, -0.8], [-0.2, 0.9], [0.6, -0.4]],
  };
  const MOST_POINTS = 30;
  const SAMPLES = [1, 2, 4, 8, 16, 32, 64];
  const EXACT_SAMPLES = 32;
  const { make, choice, slider, number, clamp, count } = DANP.parts;

  class Live {
    constructor(state, el) {
      this.state = state;
      this.el = el;
      this.name = state.get("model") || state.get("models")?.[0] || DATA[0];
      this.level = 0;
      this.seed = 0;
      this.samples = state.get("samples") ?? 16;
      this.pointsOf = new Map();
      if (state.get("points")) this.pointsOf.set(this.name, state.get("points").map((p) => [...p]));
      this.handles = [];
      this.loaded = new Map(); // samplers by the model's name
      this.starting = new Map(); // promises of them
      this.answer = null;
      this.held = null; // the handle that is being dragged
      this.calm = globalThis.matchMedia("(prefers-reduced-motion: reduce)");
      this.#build(state.get("controls") === "full");
      this.#listen();
      this.#show();
    }

    get points() {
      if (!this.pointsOf.has(this.name)) {
        const prior = DANP.describe(this.name).prior?.name;
        const kind = Object.keys(FIRST_POINTS).find((key) => prior?.startsWith(key));
        const first = (this.poster?.points ?? FIRST_POINTS[kind] ?? []).filter(([x]) => x === clamp(x, this.plot.xRange));
        this.pointsOf.set(this.name, first.map((p) => [...p]));
      }
      return this.pointsOf.get(this.name);
    }

    /** An answer for the first points that came with the page, to show before the model is there. */
    get poster() {
      return DANP.posters?.[this.name];
    }

    get sampler() {
      return this.loaded.get(this.name);
    }

    // ---- the elements

    #build(full) {
      this.canvas = make("canvas", { role: "img", "aria-label": "Points, and functions through them" });
      this.startButton = make("button", { type: "button", className: "danp-start" }, "Start the model (1 MB)");
      this.frame = make("div", { className: "danp-plot" }, this.canvas, this.startButton);
      this.status = make("p", { className: "danp-status", role: "status" });
      this.legend = make("p", { className: "danp-legend" },
        make("span", { className: "danp-of-context" }, "context points"),
        this.modelKey = make("span", { className: "danp-of-model" }),
        this.bandKey = make("span", { className: "danp-of-band" }, "exact posterior, mean and 90\u00a0%"));
      this.exactCanvas = make("canvas", { role: "img" });
      this.exactFrame = make("div", { className: "danp-plot danp-small" }, this.exactCanvas);
      this.exactText = make("p", { className: "danp-legend" });
      this.plot = new DANP.Plot(this.canvas);
      this.exactPlot = new DANP.Plot(this.exactCanvas);
      const tools = make("div", { className: "danp-tools" });
      if (full) tools.append(...this.#choices());
      tools.append(make("div", {},
        this.addButton = make("button", { type: "button", title: "where the samples differ most" }, "Add point"),
        this.clearButton = make("button", { type: "button" }, "Clear"),
        this.seedButton = make("button", { type: "button", title: "other noise" }, "Resample")));
      this.el.replaceChildren(tools, this.frame, this.legend, this.exactText, this.exactFrame, this.status);
      this.el.setAttribute("aria-label", "A DANP that answers in the page");
    }

    #choices() {
      const names = this.state.get("models") ?? (DATA.includes(this.name) && !DANP.models[this.name] ? DATA : [this.name]);
      const titles = names.map((name) => DANP.describe(name).title), alike = new Set(titles).size < titles.length;
      this.dataChoice = choice(names.map((name, i) => [name, alike ? name : titles[i]]), this.name);
      const sizes = [...new Set([...SAMPLES, this.samples])].sort((a, b) => a - b);
      this.samplesChoice = choice(sizes.map((value) => [value, String(value)]), this.samples);
      this.levelChoice = slider(0, 0, 1, 0);
      this.levelName = make("span", { className: "danp-level" });
      return [
        make("label", {}, "Data", this.dataChoice),
        make("label", {}, "Samples", this.samplesChoice),
        make("label", {}, "Level", this.levelChoice, this.levelName),
      ];
    }

    #listen() {
      const on = (element, kind, action) => element?.addEventListener(kind, action);
      on(this.startButton, "click", () => this.start());
      on(this.addButton, "click", () => this.start().then(() => this.#addWhereUnsure()));
      on(this.clearButton, "click", () => this.#change([]));
      on(this.seedButton, "click", () => { this.seed += 1; this.start(); this.ask(); });
      on(this.samplesChoice, "change", (e) => { this.samples = Number(e.target.value); this.ask(); });
      on(this.levelChoice, "input", (e) => {
        // To the right is cleaner.
        this.level = Number(e.target.max) - Number(e.target.value);
        this.#nameLevel();
        this.ask();
      });
      on(this.dataChoice, "change", (e) => {
        this.name = e.target.value;
        this.level = 0;
        this.#show();
        this.#tell();
        this.start();
      });
      // A mouse adds at once and goes on as a drag; a finger may be about to scroll, and adds when it taps.
      on(this.canvas, "pointerdown", (e) => {
        if (e.pointerType !== "mouse" || e.button !== 0) return;
        e.preventDefault();
        const handle = this.#add(this.#at(e));
        if (handle) this.#hold(handle, e);
      });
      on(this.canvas, "click", (e) => { if (e.pointerType !== "mouse") this.#add(this.#at(e)); });
      this.unfollow = DANP.parts.follow(this.frame, () => this.#layout(), () => this.#drawBoth());
      this.fromOutside = () => {
        const points = this.state.get("points") ?? [];
        // A notebook says so too where the page itself has set them.
        if (JSON.stringify(points) !== JSON.stringify(this.points)) this.#change(points);
      };
      this.state.on("change:points", this.fromOutside);
    }

    destroy() {
      this.gone = true;
      clearTimeout(this.pause);
      this.unfollow();
      this.state.off?.("change:points", this.fromOutside);
      for (const sampler of this.loaded.values()) sampler.stop();
    }

    // ---- the model

    /** Fetch the model, once however often it is asked for, and answer. */
    start() {
      const { name } = this;
      if (!this.starting.has(name)) this.starting.set(name, this.#start(name));
      return this.starting.get(name);
    }

    async #start(name) {
      if (document.activeElement === this.startButton) this.addButton.focus({ preventScroll: true });
      this.startButton.hidden = true;
      this.#say("Loading the model …");
      try {
        await DANP.loadScript(name, DANP.folder);
        const model = await DANP.createModel(name);
        if (this.gone) return;
        if (!model.kernels.simd) this.#fewer();
        this.loaded.set(name, new DANP.Sampler(model, name, (answer) => this.#receive(name, answer)));
      } catch (error) {
        this.starting.delete(name);
        if (name !== this.name) return;
        this.#say(`The model could not be started: ${error.message}.`);
        this.startButton.hidden = false;
        return;
      }
      if (name === this.name) this.#show();
    }

    // Plain JavaScript takes ten times as long.
    #fewer() {
      if (this.slow) return;
      this.slow = true;
      this.samples = Math.min(this.samples, 4);
      if (this.samplesChoice) this.samplesChoice.value = this.samples;
    }

    /** Ask the model about what is on the page; `hurry` while it is about to change again. */
    ask(hurry = false) {
      const { points, seed, samples, level } = this;
      this.sampler?.ask({ points: points.map((p) => [...p]), seed, samples, level, hurry });
    }

    /** A promise of the answer to what was asked last. */
    async idle() {
      return this.sampler?.idle();
    }

    #receive(name, answer) {
      if (name !== this.name) return;
      // Who asked for less motion sees the samples appear once, not one by one.
      if (!this.calm.matches || answer.done) {
        this.answer = answer;
        this.#draw();
      }
      if (answer.done && !answer.hurried) this.#summarize(answer);
    }

    /** A coordinate in the data's units, to three digits of its range. */
    #inWords(axis, value) {
      const [low, high] = this.plot[`${axis}Range`], unit = this.plot.scaling[`${axis}Unit`];
      const digits = Math.max(0, 2 - Math.floor(Math.log10(unit * (high - low))));
      return number(this.plot.scaling[`${axis}Offset`] + unit * value, digits);
    }

    #summarize({ curves, xt, level, milliseconds }) {
      const spread = Array.from(xt, (_, i) => {
        const values = curves.map((curve) => curve[i]).sort((a, b) => a - b);
        return values[values.length - 1] - values[0];
      });
      const [left, right] = this.plot.xRange, [low, high] = this.plot.yRange, near = 0.1 * (high - low);
      // Where they differ most; where they do not, as far from the points and the ends as can be.
      const room = Array.from(xt, (x) => Math.min(x - left, right - x, ...this.points.map(([at]) => Math.abs(at - x))));
      const by = Math.max(...spread) > 0 ? spread : room, most = by.indexOf(Math.max(...by));
      this.mostUnsure = [xt[most], curves[0][most]];
      const share = spread.filter((s) => s < near).length / spread.length;
      const asked = `${count(this.points.length, "point")}, ${count(curves.length, "sample")} in ${Math.round(milliseconds)} ms.`;
      if (curves.length === 1) return this.#say(asked);
      const who = level ? `At level ${level} their means` : "They", ends = curves.map((curve) => curve[most]);
      if (share === 1) return this.#say(`${asked} ${who} agree everywhere.`);
      const y = (value) => this.#inWords("y", value);
      this.#say(`${asked} ${who} agree at ${Math.round(100 * share)}\u00a0% of the inputs and differ most at ` +
        `x = ${this.#inWords("x", xt[most])}, from ${y(Math.min(...ends))} to ${y(Math.max(...ends))}.`);
    }

    #say(text) {
      this.status.textContent = text;
    }

    // ---- points

    #at(event) {
      const box = this.canvas.getBoundingClientRect();
      return this.plot.fromPage(event.clientX - box.left, event.clientY - box.top);
    }

    #inside([x, y]) {
      return [clamp(x, this.plot.xRange), clamp(y, this.plot.yRange)];
    }

    #add(point) {
      if (this.points.length >= MOST_POINTS) {
        this.#say(`${MOST_POINTS} points are the most; remove one first.`);
        return null;
      }
      this.#change([...this.points, this.#inside(point)]);
      this.start();
      return this.handles.at(-1);
    }

    async #addWhereUnsure() {
      await this.idle();
      const [low, high] = this.plot.xRange;
      this.#add(this.mostUnsure ?? [(low + high) / 2, 0.5])?.focus();
    }

    #move(index, point, hurry) {
      this.points[index] = this.#inside(point);
      this.#place(index);
      this.#drawExact();
      this.#tell();
      this.ask(hurry);
    }

    #release() {
      this.held?.handle.classList.remove("danp-held");
      this.held = null;
    }

    #remove(index) {
      this.#release();
      this.#change(this.points.filter((_, i) => i !== index));
      (this.handles[Math.min(index, this.handles.length - 1)] ?? this.addButton).focus({ preventScroll: true });
    }

    #change(points) {
      this.pointsOf.set(this.name, points.map((p) => [...p]));
      this.#sync();
      this.#drawExact();
      this.#tell();
      this.ask();
    }

    #tell() {
      this.state.set("points", this.points.map((p) => [...p]));
      this.state.save_changes();
    }

    // ---- handles: a button a point, so that keyboards and screen readers have them too

    #sync() {
      while (this.handles.length > this.points.length) this.handles.pop().remove();
      while (this.handles.length < this.points.length) {
        const handle = this.#handle();
        this.handles.push(handle);
        this.frame.append(handle);
      }
      this.points.forEach((_, index) => this.#place(index));
    }

    #place(index) {
      const [left, top] = this.plot.toPage(this.points[index]), [x, y] = this.points[index];
      const handle = this.handles[index], [low, high] = this.plot.xRange;
      Object.assign(handle.style, { left: `${left}px`, top: `${top}px` });
      // A slider tells a screen reader to pass the arrow keys on, and to read the new place.
      for (const [name, value] of Object.entries({
        label: `Point ${index + 1}: arrow keys move it, Delete removes it`,
        valuemin: low, valuemax: high, valuenow: x,
        valuetext: `x ${this.#inWords("x", x)}, y ${this.#inWords("y", y)}`,
      })) handle.setAttribute(`aria-${name}`, value);
    }

    #handle() {
      const handle = make("button", { type: "button", className: "danp-point", role: "slider" });
      const born = performance.now();
      const index = () => this.handles.indexOf(handle);
      handle.addEventListener("pointerdown", (e) => {
        if (e.button === 0) this.#hold(handle, e);
      });
      handle.addEventListener("pointermove", (e) => {
        if (this.held?.handle !== handle) return;
        const [x, y] = this.#at(e), [dx, dy] = this.held.offset;
        this.#move(index(), [x + dx, y + dy], true);
      });
      const release = () => {
        if (this.held?.handle !== handle) return;
        this.#release();
        this.ask();
      };
      handle.addEventListener("pointerup", release);
      handle.addEventListener("pointercancel", release);
      handle.addEventListener("dblclick", () => {
        // Not the two clicks that made it.
        if (performance.now() - born > 600) this.#remove(index());
      });
      handle.addEventListener("keydown", (e) => this.#key(e, index()));
      return handle;
    }

    #hold(handle, event) {
      this.#release();
      const [x, y] = this.#at(event), [px, py] = this.points[this.handles.indexOf(handle)];
      this.held = { handle, offset: [px - x, py - y] };
      handle.classList.add("danp-held");
      handle.setPointerCapture(event.pointerId);
      handle.focus({ preventScroll: true });
      this.start();
    }

    #key(event, index) {
      const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
      const step = steps[event.key];
      if (event.key === "Delete" || event.key === "Backspace") this.#remove(index);
      else if (step) {
        const size = event.shiftKey ? 0.05 : 0.01, [x, y] = this.points[index];
        const span = ([low, high]) => size * (high - low);
        this.#move(index, [x + step[0] * span(this.plot.xRange), y + step[1] * span(this.plot.yRange)], true);
        clearTimeout(this.pause);
        this.pause = setTimeout(() => this.ask(), 250);
        this.start();
      } else return;
      event.preventDefault();
    }

    // ---- the pictures

    /** Everything for the data set that is chosen. */
    #show() {
      const about = DANP.describe(this.name), config = DANP.models[this.name]?.config;
      this.answer = null;
      for (const plot of [this.plot, this.exactPlot])
        plot.setRanges(config?.domain ?? [-2, 2], about.yRange, config?.scaling);
      this.startButton.hidden = this.starting.has(this.name);
      this.startButton.textContent = DANP.models[this.name] ? "Start the model" : "Start the model (1 MB)";
      if (this.levelChoice) {
        this.levelChoice.disabled = !config;
        this.levelChoice.max = config?.numLevels ?? 3;
        this.levelChoice.value = this.levelChoice.max - this.level;
      }
      this.#nameLevel();
      if (!this.sampler) this.#say("Click to add a point, drag it, double-click to remove it; on a point in focus, arrow keys and Delete do the same.");
      this.#layout();
      if (this.sampler) this.ask();
    }

    #nameLevel() {
      this.modelKey.textContent = this.level ? "mean of each sample; dots: what it draws" : "samples of the DANP";
      if (!this.levelChoice) return;
      const name = this.level ? String(this.level) : "0 (clean)";
      this.levelName.textContent = name;
      this.levelChoice.setAttribute("aria-valuetext", `level ${name}`);
    }

    #layout() {
      this.#exactFound();
      if (!this.plot.resize()) return;
      this.exactPlot.resize();
      this.#sync();
      this.#drawBoth();
    }

    #drawBoth() {
      this.#draw();
      this.#drawExact();
    }

    #draw() {
      const fresh = !this.sampler && JSON.stringify(this.points) === JSON.stringify(this.poster?.points);
      const answer = this.answer ?? (fresh ? { ...this.poster, wanted: 16 } : {});
      const sets = (answer.sets ?? []).filter(Boolean).slice(0, 8);
      const opacity = Math.max(0.14, (answer.wanted ?? 1) ** -0.4);
      const band = this.exact?.mean && !this.level ? this.exact : null;
      this.bandKey.hidden = !band;
      this.plot.draw({ ...answer, sets, band, jump: answer.level ? Infinity : DANP.describe(this.name).jump, opacity });
    }

    /** Find the exact posterior for the points, and show which of the two ways it is drawn. */
    #exactFound() {
      const { prior } = DANP.describe(this.name); // known once the model's script is there
      const key = JSON.stringify([this.name, this.points, prior]);
      if (this.exactFor === key) return;
      const points = { x: this.points.map((p) => p[0]), y: this.points.map((p) => p[1]) };
      this.exactFor = key;
      this.exact = DANP.posterior(points, prior);
      const { why, waves, within } = this.exact ?? {};
      this.exactText.hidden = !(why || waves);
      this.exactFrame.hidden = !(waves || why);
      this.exactCanvas.setAttribute("aria-label", waves ? `Exact posterior: ${DANP.exact.describe(this.exact)}.` : why ?? "");
      if (!waves) return this.exactText.replaceChildren(why ?? "");
      const near = within ? `, over waves within ${within} of the points` : "";
      this.exactText.replaceChildren(make("span", { className: "danp-of-exact" }, `exact posterior${near}; darker is more probable`));
    }

    #drawExact() {
      this.#exactFound();
      // A model's answer redraws the large plot, with the band; before there is a model nothing else does.
      if (!this.sampler) this.#draw();
      if (this.exactFrame.hidden) return;
      const { waves } = this.exact ?? {};
      const functions = waves ? DANP.exact.shown(this.exact, EXACT_SAMPLES) : [];
      this.exactPlot.draw({ functions, points: this.points });
    }
  }

  DANP.widgets = { model: Live };
})((globalThis.DANP = globalThis.DANP || {}));
