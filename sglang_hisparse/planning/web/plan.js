// The arithmetic of a plan, the same as capacity.py and planning/{footprint,host_pool,plan}.py: names and order of the
// operations follow the Python, so that the numbers are equal to the last bit. Tested in tests/unit/test_plan_page.py.
"use strict";

const PAGE = 64, OPEN_PAGES = 2, GIB = 1 << 30, MOST_HOT_ROWS = 32768;
const HOT_ROWS_OF_TOP_K = 4, RUNTIME_GIB = 2, RAM_SHARE = 0.95, ALIGNMENT = 16;

const div = (a, b) => Math.floor(a / b);
const ceilPages = (tokens) => Math.ceil(tokens / PAGE);

// -- capacity.py ------------------------------------------------------------------------------------------------------

function hotPages(topK, hotRows) {
  const least = ceilPages(topK);
  const wanted = ceilPages(hotRows === null ? HOT_ROWS_OF_TOP_K * topK : hotRows);
  return [least, Math.min(Math.max(wanted, least), MOST_HOT_ROWS / PAGE)];
}

function tableBytes(groups, tables, hotMax, logicalPages) {
  return 4 * (logicalPages + 1) + tables * hotMax * PAGE * (8 * groups + 4);
}

function requestBounds(device, host, hotMin, context, beside) {
  const pages = Math.max(1, ceilPages(context)), least = hotMin + OPEN_PAGES + 1;
  if (host === 0 || pages <= least) return null;
  return [div(Math.max(0, device - beside), least), div(device + host, pages + hotMin)];
}

function requestsThatFit(device, host, hotMin, context, beside) {
  const resident = div(device, Math.max(1, ceilPages(context)));
  const bounds = requestBounds(device, host, hotMin, context, beside);
  return [resident, bounds ? Math.max(resident, Math.min(...bounds)) : resident];
}

function bindingResource(device, host, hotMin, context, slots, beside) {
  if (slots > 0 && slots < requestsThatFit(device, host, hotMin, context, beside)[1]) return "request_slots";
  const bounds = requestBounds(device, host, hotMin, context, beside);
  return bounds && bounds[1] < bounds[0] ? "host_pool" : "device_pool";
}

// null where Python raises: the host pool is too small to be of use, or HBM is too small for it.
function sizePools(budget, hostGib, token, groups, topK, hotRows, slots, context, chunk, readsHost) {
  const [hotMin, hotMax] = hotPages(topK, hotRows);
  const host = Math.floor((hostGib * GIB) / (PAGE * token.host));
  if ((0 < host && host <= hotMin) || (host === 0 && hostGib > 0)) return null;
  const beyond = Math.max(0, host - hotMin);
  let tables = host ? slots : 0;
  const fixed = tableBytes(groups, tables, hotMax, beyond) + beyond * PAGE * token.index;
  const device = Math.trunc((budget - fixed) / (PAGE * (token.kv + token.index)));
  if (device < (host ? hotMin + OPEN_PAGES + 2 + ceilPages(chunk) : 1)) return null;
  tables = Math.min(tables, div(device, 2) + 1);
  let beside = ceilPages(chunk);
  if (!readsHost) beside = Math.max(0, ceilPages(context) - hotMin - OPEN_PAGES - 1);
  const [resident, tiered] = requestsThatFit(device, host, hotMin, context, beside);
  return {
    device, host, logical: device + beyond, hotMin, beside, resident, tiered, context,
    tableBytes: tableBytes(groups, tables, hotMax, device + beyond),
    binding: bindingResource(device, host, hotMin, context, slots, beside),
  };
}

// -- footprint.py -----------------------------------------------------------------------------------------------------

function planes(model) {
  return model.kv_heads ? 2 : 1;
}

function tokenBytes(model, attentionTp, dtype) {
  const heads = Math.max(1, div(model.kv_heads, attentionTp));
  const row = model.row_bytes[dtype === "fp8" ? 1 : 0] * heads;
  const padded = Math.ceil(div(row, planes(model)) / ALIGNMENT) * ALIGNMENT * planes(model);
  const kv = model.layers * row;
  return { kv, host: model.layers * padded, index: model.index_bytes + kv * model.index_share };
}

function fetchNs(model, token, gpu) {
  const bytes = token.host / model.layers / planes(model);
  const rows = planes(model) * model.groups.reduce((sum, size) => sum + size, 0);
  return rows * Math.max(bytes / gpu.gather_gbps, gpu.row_ns + bytes * gpu.byte_ns);
}

// -- host_pool.py -----------------------------------------------------------------------------------------------------

function first(holds, low, high) {
  while (low < high) {
    const middle = div(low + high, 2);
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

function smallestPool(size, without, hostBytes, slots) {
  const { context, hotMin } = without;
  const resident = Math.min(slots, without.resident);
  const bounds = (pages) => {
    const sized = size(((pages + 0.5) * PAGE * hostBytes) / GIB);
    return sized && requestBounds(sized.device, sized.host, hotMin, context, sized.beside);
  };
  const crossed = (pages) => {
    const found = bounds(pages);
    return !found || found[0] <= found[1];
  };
  const requests = (pages) => {
    const found = pages > hotMin ? bounds(pages) : null;
    return found ? Math.min(slots, ...found) : 0;
  };
  const enough = hotMin + 1 + slots * (ceilPages(context) + hotMin);
  const cross = first(crossed, hotMin + 1, enough);
  const most = Math.max(requests(cross), requests(cross - 1));
  if (most <= resident) return [0, resident];
  const start = requests(cross - 1) < most ? cross : cross - 1;
  const pages = first((count) => requests(count) >= most, hotMin + 1, start);
  return [Math.ceil(((pages * PAGE * hostBytes) / GIB) * 1e4) / 1e4, most];
}

// -- plan.py ----------------------------------------------------------------------------------------------------------

// inputs: the fields of planning.inputs.Inputs, `model` and `gpu` as objects; null for what is left open.
function makePlan(inputs) {
  const { model, gpu, context, max_running: slots } = inputs;
  const tp = inputs.dp_attention ? div(inputs.tp, inputs.dp) : inputs.tp;
  const gpus = inputs.dp_attention ? inputs.tp : inputs.tp * inputs.dp;
  const fraction = inputs.mem_fraction === null ? gpu.mem_fraction : inputs.mem_fraction;
  const memory = gpu.memory_mib * 1048576;
  const token = tokenBytes(model, tp, inputs.kv_dtype);
  const weights =
    inputs.weights_gib === null ? model.dense_bytes / tp + model.expert_bytes / inputs.tp : inputs.weights_gib * GIB;
  const state = Math.ceil(model.state_bytes / tp);
  const fixed = (memory - RUNTIME_GIB * GIB) * fraction;
  const budget = Math.max(0, Math.trunc(fixed - weights - slots * state));
  const size = (hostGib) =>
    sizePools(
      budget, hostGib, token, model.groups.length, model.top_k, inputs.hot_rows, slots, context,
      model.prefill_reads_host ? gpu.chunk_tokens : 0, model.prefill_reads_host,
    );
  const without = size(0);
  const smallest = without ? smallestPool(size, without, token.host, slots) : [0, 0];
  const ram = inputs.host_ram_gib === null ? gpu.host_ram_gib * gpus : inputs.host_ram_gib;
  const mostPool = (ram * RAM_SHARE) / gpus;
  let hostGib = without ? inputs.host_pool_gib : 0;
  if (hostGib === null) hostGib = chosenPool(smallest, mostPool, size, slots);
  let sized = without && size(hostGib);
  const refused = without !== null && sized === null;
  if (refused) [hostGib, sized] = [0, without];

  const pages = Math.max(1, ceilPages(context));
  const resident = without ? Math.min(slots, without.resident) : 0;
  const tiered = sized ? Math.min(slots, sized.tiered) : 0;
  const device = sized ? sized.device : 0, host = sized ? sized.host : 0;
  const [hotMin] = hotPages(model.top_k, inputs.hot_rows);
  const hot = tiered * pages > device ? hotMin * tiered : 0;
  const inHbm = Math.min(tiered * pages, device - hot);
  const spilled = tiered * pages - inHbm;
  const traffic = trafficOf(inputs, token, tiered ? spilled / (tiered * pages) : 0, tiered);
  let binding = sized ? sized.binding : "device_pool";
  if (binding === "host_pool" && tiered >= smallest[1]) binding = tiered === slots ? "request_slots" : "device_pool";
  if (traffic.requests !== null && traffic.requests < tiered) binding = "link";
  const pageGib = (PAGE * token.kv) / GIB, indexGib = (PAGE * token.index) / GIB, hostPageGib = (PAGE * token.host) / GIB;
  const least = Math.min(pages, hotMin + OPEN_PAGES + 1);
  return {
    bytes_per_token: token,
    state_bytes: state,
    kv_gib: budget / GIB,
    weights_gib: weights / GIB,
    host_pool_gib: hostGib,
    host_pool_gib_total: hostGib * gpus,
    resident_requests: resident,
    tiered_requests: tiered,
    resident_requests_total: resident * inputs.dp,
    tiered_requests_total: tiered * inputs.dp,
    gain: resident ? tiered / resident : null,
    min_host_pool_gib: smallest[0],
    most_requests: smallest[1],
    longest_prompt: sized ? (model.prefill_reads_host ? sized.logical : sized.device) * PAGE : 0,
    binding,
    gpu_gib: {
      outside: (memory - fixed) / GIB,
      weights: weights / GIB,
      state: (slots * state) / GIB,
      tables: (sized ? sized.tableBytes : 0) / GIB,
      index: (sized ? sized.logical : 0) * indexGib,
      kv: inHbm * pageGib,
      hot: hot * pageGib,
      free: (device - inHbm - hot) * pageGib,
    },
    host_gib: { spilled: spilled * hostPageGib, free: (host - spilled) * hostPageGib },
    request_gib: {
      resident: pages * (pageGib + indexGib) + state / GIB,
      tiered: least * pageGib + pages * indexGib + state / GIB,
      host: Math.max(0, pages - OPEN_PAGES) * hostPageGib,
    },
    traffic,
    // for the page only
    device_tokens: device * PAGE, refused, most_pool_gib: mostPool, gpus_total: gpus, ram_gib: ram,
  };
}

function chosenPool([exact, most], limit, size, slots) {
  if (exact > limit) {
    const sized = size(Math.floor(limit));
    return sized && sized.host ? Math.floor(limit) : 0;
  }
  const sized = size(Math.ceil(exact));
  const same = sized && Math.min(slots, sized.tiered) >= most;
  return same && Math.ceil(exact) <= limit ? Math.ceil(exact) : exact;
}

function trafficOf(inputs, token, share, requests) {
  const misses = inputs.miss_rate * Math.min(inputs.model.top_k, inputs.context) * share;
  const ns = fetchNs(inputs.model, token, inputs.gpu);
  const eachMs = (misses * ns) / 1e6;
  const moved = requests * misses * token.host;
  return {
    spilled_share: share,
    gib_step: moved / GIB,
    ms_step: requests * eachMs,
    gbps: moved / 1e6 / inputs.tpot_ms,
    link_gbps: token.host / ns,
    requests: eachMs > 0 ? Math.trunc(inputs.tpot_ms / eachMs) : null,
    fits: requests * eachMs <= inputs.tpot_ms,
  };
}

if (typeof module !== "undefined") module.exports = { makePlan };
