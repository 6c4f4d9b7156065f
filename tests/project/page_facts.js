// What test_browser.py wants to know of a page, gathered inside it: `page.evaluate` calls this function.
async () => {
  await window.MathJax?.startup?.promise;
  const article = document.querySelector("article");
  const within = (selector) => [...article.querySelectorAll(selector)];
  const nameOf = (element) => {
    const { tagName, id, className } = element;
    const classes = typeof className === "string" ? className.trim().replace(/\s+/g, ".") : "";
    return tagName.toLowerCase() + (id ? `#${id}` : "") + (classes ? `.${classes}` : "");
  };
  const shows = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const folded = (element) => element.closest("details:not([open])") !== null;

  // Text that a reader sees as it stands, outside code and outside typeset mathematics.
  const walker = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
  let prose = "";
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.parentElement.closest("pre, code, script, style, mjx-container")) prose += node.data;
  }

  const speaks = (element) =>
    [element.getAttribute("aria-label"), element.getAttribute("title"), element.textContent,
      element.querySelector("img")?.alt].some((name) => name?.trim());

  return {
    language: document.documentElement.lang,
    title: document.title,
    mathematics: within(".math").length,
    typeset: within(".math mjx-container").length,
    mathErrors: within("mjx-merror, [data-mjx-error]").map((error) => error.textContent),
    rawMathematics: prose.match(/\\\(|\\\[|\$\$|\\(?:mathcal|mathbf|frac|beta)\b/g) ?? [],
    images: within("img").map((image) => ({
      source: image.getAttribute("src"),
      alt: image.alt,
      width: image.naturalWidth,
      shown: folded(image) || (shows(image) && image.getBoundingClientRect().width > 0),
    })),
    headings: within("h1, h2, h3, h4, h5, h6")
      .filter((heading) => !folded(heading))
      .map((heading) => Number(heading.tagName[1])),
    silent: [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select")]
      .filter((element) => shows(element) && !speaks(element) && !element.labels?.length && !element.placeholder)
      .map(nameOf),
    downloads: [...document.querySelectorAll("a[href*='_sources/'][href$='.ipynb']")].map((link) => link.href),
  };
};
