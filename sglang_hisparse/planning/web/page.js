// The page around plan.js: reads the form, shows the plan. No network, no storage.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const count = (n) => Math.round(n).toLocaleString("en-US");
const gib = (n) => n.toLocaleString("en-US", { maximumFractionDigits: n < 10 ? 2 : 1 });

const LIMITS = {
  device_pool: "the device pool (HBM)", host_pool: "the host pool",
  request_slots: "request slots", link: "the link at this step time",
};
const USES = [
  ["outside", "outside --mem-fraction-static, CUDA"], ["weights", "weights"], ["state", "recurrent state"],
  ["tables", "page map and hot tables"], ["index", "index keys"], ["kv", "KV"], ["hot", "hot rows"], ["free", "free"],
];
const REQUIRED = ["tp", "dp", "context", "max_running", "hot_rows", "miss_rate", "tpot_ms"];
const OPEN = ["weights_gib", "mem_fraction", "host_ram_gib"];
const RANGE = 1000;

// -- form -------------------------------------------------------------------------------------------------------------

function fill(inputs) {
  for (const name of [...REQUIRED, ...OPEN, "model", "gpu", "kv_dtype"]) at(name).value = inputs[name] ?? "";
  at("dp_attention").checked = inputs.dp_attention;
  at("host_auto").checked = inputs.host_pool_gib === null;
  at("host_pool_gib").value = inputs.host_pool_gib ?? 0;
  const model = DATA.models[inputs.model];
  if (inputs.hot_rows === null) at("hot_rows").value = HOT_ROWS_OF_TOP_K * model.top_k;
}

// What plan.js takes, or null with a message where a field is not possible.
function readInputs() {
  const model = DATA.models[at("model").value], gpu = DATA.gpus[at("gpu").value];
  at("hot_rows").min = model.top_k;
  const wrong = [...REQUIRED, ...OPEN, "host_pool_gib"].find((name) => !at(name).checkValidity());
  if (wrong) return [null, `${labelOf(wrong)}: ${at(wrong).validationMessage}`];
  const inputs = { model, gpu, kv_dtype: at("kv_dtype").value, dp_attention: at("dp_attention").checked };
  for (const name of REQUIRED) inputs[name] = Number(at(name).value);
  for (const name of OPEN) inputs[name] = at(name).value === "" ? null : Number(at(name).value);
  inputs.host_pool_gib = at("host_auto").checked ? null : Number(at("host_pool_gib").value || 0);
  if (inputs.dp_attention && inputs.tp % inputs.dp) return [null, "DP attention: TP has to be a multiple of DP"];
  const ranks = inputs.dp_attention ? inputs.tp / inputs.dp : inputs.tp;
  if (model.heads % ranks) return [null, `TP: the ${model.heads} query heads do not spread over ${ranks} ranks`];
  return [inputs, ""];
}

const labelOf = (id) => (at(id).labels[0] ?? at(id)).textContent.trim();

function scaleOf(slider) {
  const range = slider.querySelector("[type=range]"), number = at(slider.dataset.for);
  const low = Number(range.dataset.low), high = Number(range.dataset.high), grain = Number(range.dataset.grain);
  const log = slider.dataset.scale === "log";
  const toRange = (value) =>
    Math.round(RANGE * (log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low)));
  const toValue = (step) => {
    const raw = log ? low * (high / low) ** (step / RANGE) : low + ((high - low) * step) / RANGE;
    return Number((Math.round(raw / grain) * grain).toFixed(6));
  };
  return { range, number, toRange, toValue };
}

function syncRanges() {
  for (const slider of document.querySelectorAll(".slider")) {
    const { range, number, toRange } = scaleOf(slider);
    if (number.value !== "" && document.activeElement !== range) range.value = toRange(Number(number.value));
    range.setAttribute("aria-valuetext", number.value);
  }
}

// -- showing ----------------------------------------------------------------------------------------------------------

function show() {
  const [inputs, problem] = readInputs();
  if (!inputs) {
    messages([["bad", problem]]);
    return;
  }
  const plan = makePlan(inputs);
  if (at("host_auto").checked) at("host_pool_gib").value = plan.host_pool_gib;
  syncRanges();
  messages(findings(inputs, plan));
  at("resident").textContent = count(plan.resident_requests);
  at("tiered").textContent = count(plan.tiered_requests);
  const total = (n) => (inputs.dp > 1 ? `${count(n)} on all ${inputs.dp} replicas` : "requests at once");
  at("resident_note").textContent = total(plan.resident_requests_total);
  at("tiered_note").textContent = total(plan.tiered_requests_total);
  at("gain").textContent = plan.gain === null ? (plan.tiered_requests ? "only with it" : "-") : `${plan.gain.toFixed(2)} x`;
  at("binding").textContent = `limited by ${LIMITS[plan.binding]}`;
  bar("gpu", USES.map(([key, name]) => [key, name, plan.gpu_gib[key]]), "One GPU");
  bar("host", [["spilled", "spilled pages", plan.host_gib.spilled], ["free", "free", plan.host_gib.free]], "Host pool");
  chart(inputs, plan);
  facts(inputs, plan);
  at("launch").textContent = launch(inputs, plan);
  at("launch_title").textContent = inputs.model.not_served ? "Launch, once it is served" : "Launch";
  at("launch_section").hidden = plan.tiered_requests === 0;
}

function messages(list) {
  at("messages").replaceChildren(
    ...list.map(([kind, text]) => Object.assign(document.createElement("p"), { className: kind, textContent: text })),
  );
}

function findings(inputs, plan) {
  const found = [], { model } = inputs, ranks = plan.gpus_total;
  if (model.not_served) found.push(["", `Planned only: not served yet (${model.not_served}).`]);
  if (inputs.context > model.most_context) found.push(["", `${model.name} takes up to ${count(model.most_context)} positions.`]);
  if (plan.kv_gib * GIB < 1) found.push(["bad", `The weights (${gib(plan.weights_gib)} GiB a GPU) leave nothing for KV: more TP, a larger GPU, or smaller weights.`]);
  else if (plan.refused) found.push(["bad", "This host pool is refused: too small to be of use, or its index keys leave HBM too small."]);
  else if (!plan.tiered_requests && plan.longest_prompt < inputs.context)
    found.push(["bad", `No request runs: the longest that fits has ${count(plan.longest_prompt)} tokens.`]);
  else if (!plan.min_host_pool_gib && plan.resident_requests) found.push(["", "The tier lets no further request run here."]);
  else if (inputs.host_pool_gib === null && plan.min_host_pool_gib > plan.most_pool_gib)
    found.push(["", `Host memory (${gib(plan.ram_gib)} GiB${inputs.host_ram_gib === null && !inputs.gpu.ram_is_fixed ? ", usual for these GPUs" : ""}) keeps the pool under the ${gib(plan.min_host_pool_gib)} GiB with which the most requests run.`]);
  else if (plan.tiered_requests < plan.resident_requests) found.push(["", `This host pool costs more than it gives; the smallest of use has ${gib(plan.min_host_pool_gib)} GiB.`]);
  if (plan.host_pool_gib > plan.most_pool_gib)
    found.push(["", `${ranks} host pools take ${gib(plan.host_pool_gib_total)} GiB of ${gib(plan.ram_gib)} GiB host memory; up to ${count(Math.floor(plan.most_pool_gib))} GiB a rank fit.`]);
  return found;
}

function bar(id, parts, title) {
  const total = parts.reduce((sum, [, , size]) => sum + size, 0);
  const shown = parts.filter(([, , size]) => size >= 0.005);
  at(`${id}_bar`).replaceChildren(
    ...shown.map(([key, name, size]) => {
      const part = document.createElement("span");
      part.className = key;
      part.style.cssText = `flex: ${size} 1 0; background: var(--${key})`;
      part.title = `${name}: ${gib(size)} GiB`;
      if (size / total > 0.07 && key !== "free") part.textContent = gib(size);
      return part;
    }),
  );
  at(`${id}_bar`).setAttribute("aria-label", `${title}: ${shown.map(([, name, size]) => `${name} ${gib(size)} GiB`).join(", ")}`);
  at(`${id}_legend`).replaceChildren(
    ...[["", title, total], ...shown].map(([key, name, size]) => {
      const item = document.createElement("li");
      if (key) item.style.setProperty("--mark", `var(--${key})`);
      item.textContent = `${name} ${gib(size)} GiB`;
      item.className = key ? "" : "total";
      return item;
    }),
  );
}

function rows(table, lines) {
  table.replaceChildren(
    ...lines.map((cells, i) => {
      const row = document.createElement("tr");
      row.append(...cells.map((text, j) => Object.assign(document.createElement(j && i >= 0 ? "td" : "th"), { textContent: text })));
      return row;
    }),
  );
}

function facts(inputs, plan) {
  const { traffic, request_gib: one, bytes_per_token: token } = plan;
  rows(at("facts"), [
    ["KV budget of one GPU", `${gib(plan.kv_gib)} GiB, after ${gib(plan.weights_gib)} GiB of weights`],
    ["Host pool", `${gib(plan.host_pool_gib)} GiB a rank, ${gib(plan.host_pool_gib_total)} GiB of host memory in all`],
    ["Pool for the most requests", plan.min_host_pool_gib ? `${gib(plan.min_host_pool_gib)} GiB a rank: ${count(plan.most_requests)} requests` : "none"],
    ["Device pool", `${count(plan.device_tokens)} tokens; longest prompt ${count(plan.longest_prompt)}`],
    ["A token", `${count(token.kv)} B of KV, ${count(token.index)} B of index keys; ${count(token.host)} B on the host`],
    ["A request", `${gib(one.resident)} GiB resident; tiered ${gib(one.tiered)} GiB of HBM and ${gib(one.host)} GiB on the host`],
    ["A decode step", traffic.ms_step
      ? `${(100 * traffic.spilled_share).toFixed(0)} % of the tokens on the host: ${gib(traffic.gib_step)} GiB, ${traffic.ms_step.toFixed(1)} ms of the link at ${traffic.link_gbps.toFixed(1)} GB/s; ${traffic.fits ? "fits" : "does not fit"} into ${inputs.tpot_ms} ms`
      : "all tokens in HBM: nothing moves"],
    ["The link carries", traffic.requests === null ? "-" : `${count(traffic.requests)} requests at ${inputs.tpot_ms} ms (${inputs.gpu.link})`],
  ]);
}

function launch(inputs, plan) {
  const options = { host_pool_gib: plan.host_pool_gib };
  if (inputs.hot_rows !== HOT_ROWS_OF_TOP_K * inputs.model.top_k) options.hot_rows = inputs.hot_rows;
  if (inputs.model.family === "quest") options.selector = "quest";
  const json = Object.entries(options).map(([key, value]) => `"${key}": ${JSON.stringify(value)}`).join(", ");
  return [
    "python -m sglang_hisparse.launch_server", `--model-path ${inputs.model.path} --tp ${inputs.tp}`,
    inputs.dp > 1 ? `${inputs.dp_attention ? "--attn-dp-size" : "--dp"} ${inputs.dp}` : "",
    `--context-length ${inputs.context}`, `--kv-cache-dtype ${inputs.kv_dtype === "fp8" ? "fp8_e4m3" : "bfloat16"}`,
    `--mem-fraction-static ${inputs.mem_fraction ?? inputs.gpu.mem_fraction}`,
    `--max-running-requests ${inputs.max_running * (inputs.dp_attention ? inputs.dp : 1)}`,
    `--hisparse-config '{${json}}'`,
  ].filter(Boolean).join(" ");
}

// -- chart ------------------------------------------------------------------------------------------------------------

const CHART = { left: 40, right: 14, top: 12, bottom: 30, points: 120 };

function curve(inputs, plan) {
  const low = 4096, high = Math.max(1048576, inputs.context), points = [];
  for (let i = 0; i <= CHART.points; i++) {
    const context = Math.round(low * (high / low) ** (i / CHART.points));
    const { resident_requests, tiered_requests } = makePlan({ ...inputs, context, host_pool_gib: plan.host_pool_gib });
    points.push([context, resident_requests, tiered_requests]);
  }
  return points;
}

function chart(inputs, plan) {
  const { left, right, top, bottom } = CHART;
  const width = Math.max(280, at("chart").clientWidth), height = Math.round(Math.min(340, Math.max(220, width * 0.4)));
  const points = curve(inputs, plan), [low, high] = [points[0][0], points.at(-1)[0]];
  const most = Math.max(10, ...points.map(([, a, b]) => Math.max(a, b))) * 1.3;
  const x = (context) => left + ((width - left - right) * Math.log(context / low)) / Math.log(high / low);
  const y = (n) => height - bottom - ((height - top - bottom) * Math.log(n / 0.8)) / Math.log(most / 0.8);
  const line = (k) => points.filter((p) => p[k] > 0).map((p, i) => `${i ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[k]).toFixed(1)}`).join("");
  const out = [];
  for (let n = 1, i = 0; n <= most; n *= [2, 2.5, 2][i++ % 3])
    out.push(`<line class="grid" x1="${left}" x2="${width - right}" y1="${y(n)}" y2="${y(n)}"/><text x="${left - 8}" y="${y(n) + 4}" text-anchor="end">${count(n)}</text>`);
  for (let tokens = low; tokens <= high; tokens *= 4) out.push(`<line class="grid" y1="${top}" y2="${height - bottom}" x1="${x(tokens)}" x2="${x(tokens)}"/><text x="${x(tokens)}" y="${height - 12}" text-anchor="middle">${tokens >= 1048576 ? `${tokens / 1048576}M` : `${tokens / 1024}K`}</text>`);
  const only = points.filter(([, a, b]) => !a && b);
  if (only.length) {
    const [from, to] = [x(only[0][0]), x(only.at(-1)[0])], wide = Math.max(2, to - from);
    out.push(`<rect class="only" x="${from}" y="${top}" width="${wide}" height="${height - top - bottom}"/>`);
  }
  out.push(`<path class="resident" d="${line(1)}"/><path class="tiered" d="${line(2)}"/>`);
  const here = Math.min(Math.max(inputs.context, low), high);
  out.push(`<line class="now" x1="${x(here)}" x2="${x(here)}" y1="${top}" y2="${height - bottom}"/>`);
  for (const [n, color] of [[plan.resident_requests, "--base"], [plan.tiered_requests, "--tier"]])
    if (n > 0) out.push(`<circle class="dot" cx="${x(here)}" cy="${y(n)}" r="5" style="stroke: var(${color})"/>`);
  at("chart").innerHTML = `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="Requests at once over context length, with and without the tier">${out.join("")}</svg>`;
  const svg = at("chart").firstChild;
  const tell = ([context, a, b]) => (at("chart_value").textContent = `${count(context)} tokens: ${count(a)} without the tier, ${count(b)} with it`);
  tell([inputs.context, plan.resident_requests, plan.tiered_requests]);
  svg.onpointermove = (event) => {
    const box = svg.getBoundingClientRect();
    const position = ((event.clientX - box.left) / box.width) * width;
    tell(points.reduce((best, p) => (Math.abs(x(p[0]) - position) < Math.abs(x(best[0]) - position) ? p : best)));
  };
  svg.onpointerleave = () => tell([inputs.context, plan.resident_requests, plan.tiered_requests]);
  rows(at("chart_table"), [["Tokens", "Without the tier", "With the tier"], ...points.filter((_, i) => i % 10 === 0).map((p) => p.map(count))]);
}

// -- start ------------------------------------------------------------------------------------------------------------

for (const [id, names] of [["model", Object.keys(DATA.models)], ["gpu", Object.keys(DATA.gpus)]])
  at(id).replaceChildren(...names.map((name) => new Option(DATA.models[name]?.not_served ? `${name} (planned only)` : name, name)));
fill(DATA.inputs);
for (const slider of document.querySelectorAll(".slider")) {
  const { range, number, toValue } = scaleOf(slider);
  range.addEventListener("input", () => {
    number.value = toValue(Number(range.value));
    if (number.id === "host_pool_gib") at("host_auto").checked = false;
  });
}
at("host_pool_gib").addEventListener("input", () => (at("host_auto").checked = false));
at("model").addEventListener("change", () => {
  const model = DATA.models[at("model").value];
  at("kv_dtype").value = model.default_dtype;
  at("hot_rows").value = HOT_ROWS_OF_TOP_K * model.top_k;
});
at("form").addEventListener("input", show);
at("form").addEventListener("change", show);
at("form").addEventListener("submit", (event) => event.preventDefault());
at("form").addEventListener("reset", (event) => {
  event.preventDefault();
  fill(DATA.inputs);
  show();
});
at("copy").addEventListener("click", async () => {
  const text = at("launch").textContent;
  try {
    await navigator.clipboard.writeText(text);
    at("copied").textContent = "copied";
  } catch {
    getSelection().selectAllChildren(at("launch"));
    at("copied").textContent = "selected: press Ctrl-C";
  }
});
let chartWidth = 0;
new ResizeObserver(() => {
  if (at("chart").clientWidth !== chartWidth) show();
  chartWidth = at("chart").clientWidth;
}).observe(at("chart"));
show();
