// Run in a page: the engine's answers to the cases of one model, for test_live.py.
async ({ model: name, cases }) => {
  const home = document.querySelector("script[src$='danp-live.js']").src;
  await DANP.loadScript(name, home);
  const model = await DANP.createModel(name);
  const answers = cases.map(({ context, xt, draws }) => {
    const prepared = model.prepare(context);
    const samples = draws.map((draw) => model.denoise(prepared, draw, xt));
    const answer = {
      sets: samples.map(({ sets }) => sets.map((set) => Array.from(set.y))),
      means: samples.map(({ loc }) => Array.from(loc)),
      variances: samples.map(({ diag }) => Array.from(diag)),
      factors: samples.map(({ factor }) => Array.from(factor)),
    };
    for (let level = 1; level <= model.config.numLevels; level++)
      answer[`level ${level}`] = draws.map((draw) => Array.from(model.denoise(prepared, draw, xt, level).loc));
    return answer;
  });
  return { simd: model.kernels.simd, answers };
};
