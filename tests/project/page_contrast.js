// Texts of a page that stand out too little from what is behind them: WCAG 2, level AA. `page.evaluate` calls this.
() => {
  const parse = (color) => {
    const [red, green, blue, alpha = 1] = color.match(/[\d.]+/g).map(Number);
    return { rgb: [red, green, blue], alpha };
  };
  const over = (top, bottom) =>
    top.rgb.map((value, i) => value * top.alpha + bottom[i] * (1 - top.alpha));
  // What is behind a text: the backgrounds of what it is in, from the page on.
  const behind = (element) => {
    if (!element) return [255, 255, 255];
    return over(parse(getComputedStyle(element).backgroundColor), behind(element.parentElement));
  };
  const luminance = (rgb) => {
    const [red, green, blue] = rgb.map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const found = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest("script, style, noscript, mjx-container, [aria-hidden=true]")) continue;
    if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    const style = getComputedStyle(element);
    const ground = behind(element);
    const [lighter, darker] = [luminance(over(parse(style.color), ground)), luminance(ground)].sort((a, b) => b - a);
    const ratio = (lighter + 0.05) / (darker + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) {
      const rgb = ground.map(Math.round).join(", ");
      const key = `${style.color} on (${rgb}), ${element.tagName.toLowerCase()}.${element.className}`;
      if (!found.has(key)) found.set(key, `${ratio.toFixed(2)}: ${key}: ${node.data.trim().slice(0, 30)}`);
    }
  }
  return [...found.values()];
};
