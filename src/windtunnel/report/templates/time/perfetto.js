// The trace of this page for Perfetto: the same slices in the Chrome format, handed over to its tab or saved as a file.
//
// Nothing here makes a network request; a click opens another tab, and the trace goes to that tab only.

const PERFETTO = "https://ui.perfetto.dev";
const PERFETTO_PATIENCE = 20_000;  // milliseconds; a tab that cannot load never answers
const PERFETTO_FIRST_PID = 100_000;  // process 0 is the idle process to some viewers

function perfettoEvents(data) {
  const { tracks, counters, slices, labels } = traceTracks(data);
  const events = [], us = (ns) => ns / 1000, pid = (rank) => PERFETTO_FIRST_PID + rank, threads = new Map(), nThreads = {};
  const name = (kind, at, args) => events.push({ ph: "M", name: kind, pid: at.pid, tid: at.tid, ts: 0, args });
  data.ranks.forEach((rank, i) => {
    name("process_name", { pid: pid(rank), tid: 0 }, { name: `rank ${rank}` });
    name("process_sort_index", { pid: pid(rank), tid: 0 }, { sort_index: i });
  });
  for (const track of tracks) {
    const tid = nThreads[track.rank] = (nThreads[track.rank] ?? 0) + 1, at = { pid: pid(track.rank), tid };
    threads.set(track, at);
    name("thread_name", at, { name: track.name });
    name("thread_sort_index", at, { sort_index: tid });
  }
  for (const [track, at] of threads) for (let i = 0; i < track.start.length; i++) {
    const label = labels[track.label[i]], n = track.merged[i];
    events.push({ ph: "X", ...at, ts: us(track.start[i]), dur: us(track.end[i] - track.start[i]), name: label.name, cat: label.category,
      args: n ? { ...label.args, slices: n } : label.args });
  }
  for (let k = 0; k < data.arrows.from.length; k++) {
    const [from, i] = slices[data.arrows.from[k]], [to, j] = slices[data.arrows.to[k]];
    const both = { name: "arrow", cat: "arrow", id: k + 1 };
    events.push({ ph: "s", ...threads.get(from), ...both, ts: us(from.start[i]) }, { ph: "f", bp: "e", ...threads.get(to), ...both, ts: us(to.start[j]) });
  }
  for (const counter of counters) counter.time.forEach((ns, i) => {
    events.push({ ph: "C", pid: pid(counter.rank), tid: 0, ts: us(ns), name: counter.name, args: { value: counter.value[i] } });
  });
  return events;
}

const perfettoBytes = (data) => new TextEncoder().encode(JSON.stringify(perfettoEvents(data)));

// Perfetto answers PING with PONG when it is ready; then it takes the trace.
function perfettoOpen(data, title, tell) {
  const other = window.open(PERFETTO);
  if (!other) {
    tell("The browser did not open a tab: allow pop-ups for this page, or save the trace and open it in Perfetto.");
    return;
  }
  tell("Waiting for Perfetto …");
  const buffer = perfettoBytes(data).buffer;
  const ask = setInterval(() => other.postMessage("PING", PERFETTO), 100);
  const stop = () => { clearInterval(ask); clearTimeout(patience); removeEventListener("message", answer); };
  const patience = setTimeout(() => {
    stop();
    tell("Perfetto did not answer, as on a cluster without internet: save the trace and drop it on a Perfetto of your own.");
  }, PERFETTO_PATIENCE);
  function answer(event) {
    if (event.origin !== PERFETTO || event.data !== "PONG") return;
    stop();
    other.postMessage({ perfetto: { buffer, title } }, PERFETTO);
    tell("Perfetto has the trace; it may ask whether to trust this page.");
  }
  addEventListener("message", answer);
}

function perfettoSave(data, tell) {
  const link = h("a", { href: URL.createObjectURL(new Blob([perfettoBytes(data)], { type: "application/json" })), download: "trace_view.json" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  tell("Saved as trace_view.json.");
}

function perfettoButtons(data, title) {
  const said = h("span", { class: "faint", role: "status" }), tell = (text) => { said.textContent = text; };
  tell("The trace goes to that tab only, nowhere else.");
  return [h("button", { type: "button", class: "perfetto-open", onclick: () => perfettoOpen(data, title, tell) }, "Open in Perfetto"),
    h("button", { type: "button", class: "perfetto-save", onclick: () => perfettoSave(data, tell) }, "Save trace"), said];
}
