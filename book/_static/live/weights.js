// Weights from the script that `danp export --web` writes: DANP.models[name] = {config, tensors, data}.
// Each entry of `tensors` is [name, shape, bits]; their numbers, float16 or float32 and little-endian,
// stand one after the other in `data`, as base64.
(function (DANP) {
  "use strict";
  DANP.models = DANP.models || {};

  DANP.decodeBase64 = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

  function fromHalf(bits) {
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent === 0) return sign * 2 ** -24 * fraction;
    return sign * 2 ** (exponent - 25) * (1024 + fraction); // there are no infinities among weights
  }

  /** All tensors by name, {shape, values: Float32Array}. */
  DANP.decodeWeights = function ({ tensors, data }) {
    const bytes = new DataView(DANP.decodeBase64(data).buffer);
    const found = {};
    let at = 0;
    for (const [name, shape, bits] of tensors) {
      const values = new Float32Array(shape.reduce((a, b) => a * b, 1));
      for (let i = 0; i < values.length; i++, at += bits / 8) {
        values[i] = bits === 16 ? fromHalf(bytes.getUint16(at, true)) : bytes.getFloat32(at, true);
      }
      found[name] = { shape, values };
    }
    return found;
  };

  const arriving = {};

  /** Load a model's script, once, from the folder that this script came from. */
  DANP.loadScript = function (name, folder) {
    if (DANP.models[name]) return Promise.resolve();
    arriving[name] ??= new Promise((resolve, reject) => {
      // Not fetch: a page opened as a file may not read other files, but may run them.
      const script = document.createElement("script");
      script.src = new URL(`${encodeURIComponent(name)}.js`, folder).href;
      script.onload = resolve;
      script.onerror = () => {
        delete arriving[name];
        reject(new Error(`${script.src} cannot be loaded`));
      };
      document.head.append(script);
    });
    return arriving[name];
  };
})((globalThis.DANP = globalThis.DANP || {}));
