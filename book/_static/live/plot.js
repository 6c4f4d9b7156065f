// The picture: axes, samples and the exact posterior on a canvas.
(function (DANP) {
  "use strict";
  const { number } = DANP.parts;
  const TOP = 10, BOTTOM = 26; // margins, for the labels; those at the sides depend on the labels

  /** Round numbers in a range, about `count` of them. */
  function ticks([low, high], count) {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step);
    return found;
  }

  /** Places of ticks and their texts, of as many decimals as tell neighbours apart. */
  function labelled(range, count) {
    const values = ticks(range, count);
    const digits = Math.max(0, Math.ceil(-Math.log10(values[1] - values[0]) - 1e-9));
    return values.map((value) => [value, number(value, digits)]);
  }

  DANP.Plot = class Plot {
    constructor(canvas) {
      this.canvas = canvas;
      this.setRanges([-2, 2], [-0.25, 1.25], null);
    }

    /** The model's ranges of x and y; `scaling` gives the data's units, in which the axes are labelled. */
    setRanges(xRange, yRange, scaling) {
      Object.assign(this, { xRange, yRange });
      this.scaling = scaling ?? { xOffset: 0, xUnit: 1, yOffset: 0, yUnit: 1 };
      const longest = (labels) => Math.max(...labels.map(([, text]) => text.length));
      // Of a character of the labels, and half of one.
      this.left = Math.max(44, 14 + 7 * longest(this.#yTicks()));
      this.right = Math.max(12, 3.5 * longest(this.#xTicks(8)));
    }

    #xTicks(count) {
      const { xOffset, xUnit } = this.scaling;
      return labelled(this.xRange.map((x) => xOffset + xUnit * x), count);
    }

    #yTicks() {
      const { yOffset, yUnit } = this.scaling;
      return labelled(this.yRange.map((y) => yOffset + yUnit * y), 5);
    }

    /** Fit the canvas to its place on the page; returns whether it has one. */
    resize() {
      const { width, height } = this.canvas.getBoundingClientRect();
      const ratio = Math.min(3, globalThis.devicePixelRatio || 1);
      Object.assign(this, { width, height, ratio });
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      return width > 0;
    }

    toPage([x, y]) {
      const [x0, x1] = this.xRange, [y0, y1] = this.yRange;
      const w = this.width - this.left - this.right, h = this.height - TOP - BOTTOM;
      return [this.left + ((x - x0) / (x1 - x0)) * w, TOP + ((y1 - y) / (y1 - y0)) * h];
    }

    fromPage(left, top) {
      const [x0, x1] = this.xRange, [y0, y1] = this.yRange;
      const w = this.width - this.left - this.right, h = this.height - TOP - BOTTOM;
      return [x0 + ((left - this.left) / w) * (x1 - x0), y1 - ((top - TOP) / h) * (y1 - y0)];
    }

    /**
     * @param {{xt, curves, sets, band, functions, truth, points, jump, opacity}} shown  Curves are arrays along xt, sets are
     *   {x, y}; a rise or fall of more than `jump` between neighbours is not drawn as a line. A band is
     *   {xt, mean, sd}, functions are pairs of one of priors.js and its opacity: both are exact. `truth` is one such function.
     */
    draw({ xt = [], curves = [], sets = [], band = null, functions = [], truth = null, points = [], jump = Infinity, opacity = 1 }) {
      const style = getComputedStyle(this.canvas), color = (name) => style.getPropertyValue(`--danp-${name}`);
      const pen = this.canvas.getContext("2d");
      pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      pen.clearRect(0, 0, this.width, this.height);
      this.#axes(pen, color("rule"), color("muted"));
      pen.save();
      pen.beginPath();
      pen.rect(this.left, 0, this.width - this.left - this.right, this.height - BOTTOM);
      pen.clip();
      if (band) this.#band(pen, band, color("exact"));
      pen.lineWidth = 2;
      pen.strokeStyle = color("exact");
      for (const [f, opaque] of functions) {
        pen.globalAlpha = opaque;
        this.#function(pen, f);
      }
      pen.strokeStyle = pen.fillStyle = color("model");
      pen.globalAlpha = opacity;
      pen.lineWidth = 1.5;
      pen.lineJoin = "round";
      for (const curve of curves) this.#line(pen, xt, curve, jump);
      for (const set of sets) this.#dots(pen, set);
      pen.globalAlpha = 1;
      pen.strokeStyle = color("ink");
      if (truth) this.#function(pen, truth);
      if (band) {
        pen.strokeStyle = color("exact");
        pen.lineWidth = 2;
        pen.setLineDash([7, 4]);
        this.#line(pen, band.xt, band.mean, Infinity);
      }
      pen.fillStyle = color("ink");
      this.#dots(pen, { x: points.map((p) => p[0]), y: points.map((p) => p[1]) }, 4);
      pen.restore();
    }

    #function(pen, f) {
      pen.beginPath();
      for (const piece of f.lines(this.xRange))
        piece.forEach((point, i) => (i ? pen.lineTo(...this.toPage(point)) : pen.moveTo(...this.toPage(point))));
      pen.stroke();
    }

    #axes(pen, rule, ink) {
      const { xOffset, xUnit, yOffset, yUnit } = this.scaling;
      const [left, bottom] = this.toPage([this.xRange[0], this.yRange[0]]);
      const [right, top] = this.toPage([this.xRange[1], this.yRange[1]]);
      pen.strokeStyle = rule;
      pen.fillStyle = ink;
      pen.lineWidth = 1;
      pen.font = "12px system-ui, sans-serif";
      const line = (...ends) => {
        pen.beginPath();
        for (const [x, y] of ends) pen.lineTo(Math.round(x) + 0.5, Math.round(y) + 0.5);
        pen.stroke();
      };
      pen.textAlign = "center";
      pen.textBaseline = "top";
      for (const [value, text] of this.#xTicks(this.width < 500 ? 4 : 8)) {
        const [x] = this.toPage([(value - xOffset) / xUnit, 0]);
        line([x, bottom], [x, bottom + 4]);
        pen.fillText(text, x, bottom + 7);
      }
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      for (const [value, text] of this.#yTicks()) {
        const [, y] = this.toPage([0, (value - yOffset) / yUnit]);
        line([left, y], [right, y]);
        pen.fillText(text, left - 7, y);
      }
      line([left, top], [left, bottom], [right, bottom]);
    }

    #line(pen, xt, values, jump) {
      pen.beginPath();
      for (let i = 0; i < xt.length; i++) {
        const at = this.toPage([xt[i], values[i]]);
        if (i && Math.abs(values[i] - values[i - 1]) < jump) pen.lineTo(...at);
        else pen.moveTo(...at);
      }
      pen.stroke();
    }

    #dots(pen, { x, y }, radius = 2.2) {
      pen.beginPath();
      for (let i = 0; i < x.length; i++) {
        const [left, top] = this.toPage([x[i], y[i]]);
        pen.moveTo(left + radius, top);
        pen.arc(left, top, radius, 0, 2 * Math.PI);
      }
      pen.fill();
    }

    #band(pen, { xt, mean, sd }, color) {
      const edge = (sign) => Array.from(xt, (x, i) => this.toPage([x, mean[i] + sign * 1.645 * sd[i]]));
      pen.beginPath();
      for (const at of [...edge(1), ...edge(-1).reverse()]) pen.lineTo(...at);
      pen.fillStyle = color;
      pen.globalAlpha = 0.3;
      pen.fill();
    }
  };
})((globalThis.DANP = globalThis.DANP || {}));
