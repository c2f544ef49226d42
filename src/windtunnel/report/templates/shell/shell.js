// The frame around the views: one tab each, drawn when it is first looked at; one chosen rank and moment for all.
//
// A view is added with addView({id, title, isThere(page), mount(box, page) -> {update?(page), resize?()}}). What it
// shows follows page.rank and page.at; to change them it calls page.choose({rank, at}).

const VIEWS = [];
const addView = (view) => VIEWS.push(view);

function openPage(data) {
  const page = {
    data,
    rank: firstRank(data),
    at: null,  // a row of the rank's events; null: its peak
    theme: "auto",
    // The representative of this rank, which has the details.
    shownBy(rank) {
      const other = data.simulated?.[rank] ? -1 : data.ranks?.same_as[data.ranks.rank.indexOf(rank)] ?? -1;
      return other >= 0 ? other : rank;
    },
    // The entry of the chosen rank in report.json, or that of its representative.
    document: () => data.simulated?.[page.shownBy(page.rank)] ?? null,
    choose(change) {
      const before = { rank: page.rank, at: page.at };
      if ("rank" in change && change.rank !== page.rank) { page.rank = change.rank; page.at = null; }
      if ("at" in change) page.at = change.at;
      if (before.rank !== page.rank || before.at !== page.at) refresh();
    },
    show,
  };
  const main = document.getElementById("main");
  const views = VIEWS.filter((view) => view.isThere(page));
  const shown = new Map();  // id -> {box, hands, isStale}
  let current = null;

  function show(id) {
    const view = views.find((each) => each.id === id) ?? views[0];
    if (!view) return;
    current = view.id;
    tip.hide();
    for (const tab of document.querySelectorAll("#tabs a")) {
      const isMine = tab.dataset.view === view.id;
      tab.setAttribute("aria-selected", String(isMine));
      tab.tabIndex = isMine ? 0 : -1;
      if (isMine) tab.scrollIntoView?.({ block: "nearest", inline: "nearest" });  // a phone shows a few tabs at a time
    }
    if (!shown.has(view.id)) {
      const box = h("section", { id: `view-${view.id}`, class: "view", role: "tabpanel", "aria-labelledby": `tab-${view.id}` });
      main.append(box);
      shown.set(view.id, { box, hands: null, isStale: false, isReady: mount(view, box) });
    }
    for (const [id, each] of shown) each.box.hidden = id !== view.id;
    const mine = shown.get(view.id);
    if (mine.isStale) { mine.isStale = false; mine.hands?.update?.(page); } else mine.hands?.resize?.();
    if (location.hash.slice(1) !== view.id) history.replaceState(null, "", `#${view.id}`);
  }

  async function mount(view, box) {
    const { rank, at } = page;
    try {
      const hands = await view.mount(box, page), mine = shown.get(view.id);
      mine.hands = hands ?? null;
      if (rank === page.rank && at === page.at) return;
      // Another was chosen while this was drawn.
      if (view.id === current) mine.hands?.update?.(page); else mine.isStale = true;
    } catch (error) {
      box.append(h("p", { class: "bad" }, `This view could not be drawn: ${error.message}.`));
      throw error;
    }
  }

  function refresh() {
    const picker = document.getElementById("rank");
    if (picker) picker.value = page.rank;
    for (const [id, each] of shown) {
      if (id === current) each.hands?.update?.(page); else each.isStale = true;
    }
  }

  function redraw() {
    for (const [id, each] of shown) if (id === current) each.hands?.resize?.(); else each.isStale = true;
  }

  drawHead(page, views, redraw);
  addEventListener("hashchange", () => {
    const asked = location.hash.slice(1);
    if (asked !== current && views.some((view) => view.id === asked)) show(asked);  // "#main" skips to the view in front
  });
  let pending = 0;
  addEventListener("resize", () => { cancelAnimationFrame(pending); pending = requestAnimationFrame(redraw); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // Paper is light, and what is drawn on canvases must be as well.
  addEventListener("beforeprint", () => { applyTheme("light"); redraw(); });
  addEventListener("afterprint", () => { applyTheme(page.theme); redraw(); });
  // For tests, and for scripts on this page: what is chosen, and when the view in front is drawn.
  window.windtunnel = { page, show, ready: async () => { await shown.get(current)?.isReady; return current; } };
  show(location.hash.slice(1) || data.opens_on);
}

const firstRank = (data) => data.verdict?.rank ?? Number(Object.keys(data.simulated ?? { 0: 0 })[0] ?? 0);

function drawHead(page, views, redraw) {
  const { data } = page;
  document.getElementById("name").append(h("strong", null, data.title), " ", h("span", { class: "faint" }, data.made_by));
  const tabs = document.getElementById("tabs");
  for (const view of views) {
    tabs.append(h("a", { id: `tab-${view.id}`, href: `#${view.id}`, role: "tab", "data-view": view.id, "aria-controls": `view-${view.id}`,
      onclick: (event) => { event.preventDefault(); page.show(view.id); } }, view.title));
  }
  tabs.hidden = views.length < 2;
  tabs.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const links = [...tabs.children], at = links.indexOf(document.activeElement);
    const next = links[(at + step + links.length) % links.length];
    page.show(next.dataset.view);
    next.focus();
    event.preventDefault();
  });
  const tools = document.getElementById("tools");
  if (data.run && data.run.world_size > 1) tools.append(rankPicker(page));
  tools.append(themeButton(page, redraw));
}

function rankPicker(page) {
  const last = page.data.run.world_size - 1;
  return h("label", null, "rank ", h("input", { id: "rank", type: "number", min: 0, max: last, value: page.rank,
    onchange: (event) => {
      const rank = Math.min(last, Math.max(0, Math.round(Number(event.target.value) || 0)));
      event.target.value = rank;
      page.choose({ rank });
    } }));
}

function applyTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

function themeButton(page, redraw) {
  const next = { auto: "light", light: "dark", dark: "auto" };
  const word = () => `theme: ${page.theme}`;
  const button = h("button", { id: "theme", type: "button", title: "light, dark, or as the system has it", onclick: () => {
    page.theme = next[page.theme];
    applyTheme(page.theme);
    button.textContent = word();
    redraw();
  } }, word());
  return button;
}
