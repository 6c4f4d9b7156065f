// What the widgets share: elements, numbers as text, random numbers, and the page's size and theme.
(function (DANP) {
  "use strict";

  /** An element with properties, attributes in kebab case, and children. */
  function make(tag, properties = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name in element) element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  /** A choice among pairs of value and text. */
  const choice = (pairs, chosen) =>
    make("select", {}, ...pairs.map(([value, text]) => make("option", { value, selected: value === chosen }, text)));

  const slider = (min, max, step, value) => make("input", { type: "range", min, max, step, value });

  /** A text with a fixed number of digits and a proper minus. */
  const number = (x, digits = 2) => (+x.toFixed(digits) + 0).toFixed(digits).replace("-", "−");
  const clamp = (x, [low, high]) => Math.min(high, Math.max(low, x));
  const count = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

  /** Call `layout` when the element's size changes and `draw` when the theme does; returns what ends both. */
  function follow(element, layout, draw) {
    const sizes = new ResizeObserver(layout), themes = new MutationObserver(draw);
    sizes.observe(element);
    globalThis.addEventListener("resize", layout); // a zoom may leave the element's size as it is
    for (const root of [document.documentElement, document.body])
      themes.observe(root, { attributeFilter: ["data-theme", "data-jp-theme-light", "data-vscode-theme-kind"] });
    return () => {
      globalThis.removeEventListener("resize", layout);
      sizes.disconnect();
      themes.disconnect();
    };
  }

  /** Uniform and normal random numbers, one stream a seed and sample (sfc32). */
  function randomness(seed, sample = 0) {
    let a = 0x9e3779b9, b = seed | 0, c = sample | 0, d = 1;
    const uniform = () => {
      const t = (((a + b) | 0) + d) | 0;
      d = (d + 1) | 0;
      a = b ^ (b >>> 9);
      b = (c + (c << 3)) | 0;
      c = ((c << 21) | (c >>> 11)) + t;
      return (t >>> 0) / 2 ** 32;
    };
    for (let i = 0; i < 15; i++) uniform();
    const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
    return { uniform, normal };
  }

  DANP.parts = { make, choice, slider, number, clamp, count, follow };
  DANP.randomness = randomness;
})((globalThis.DANP = globalThis.DANP || {}));
