// `DANP.render({ model, el })` is anywidget's convention, so that a notebook can use the widgets too. On a page it is
// called for every <div class="danp-live" data-...> with a stub that has the same methods.
(function (DANP) {
  "use strict";
  const SCRIPT = globalThis.document?.currentScript?.src ?? null; // null in a notebook's module
  DANP.folder = SCRIPT; // models lie beside it

  DANP.render = function ({ model, el }) {
    if (!document.querySelector("style[data-danp]") && DANP.css)
      document.head.append(DANP.parts.make("style", { "data-danp": "", textContent: DANP.css }));
    el.classList.add("danp-live");
    el.setAttribute("role", "group");
    el.danp = new DANP.widgets[model.get("widget") || "model"](model, el);
    return () => el.danp.destroy();
  };

  /** What a notebook's widget model does, for a page: options from data-... attributes, listeners of none. */
  function stub({ widget, model, controls }) {
    const values = { widget, model, controls };
    return { get: (key) => values[key], set: (key, value) => { values[key] = value; }, save_changes() {}, on() {} };
  }

  function renderAll() {
    for (const el of document.querySelectorAll(".danp-live:not([role])")) DANP.render({ model: stub(el.dataset), el });
  }

  if (SCRIPT) {
    if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", renderAll);
    else renderAll();
  }
})((globalThis.DANP = globalThis.DANP || {}));
