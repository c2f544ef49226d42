// trace.html: nothing but the timeline, as large as the window.
(async () => {
  const data = await traceUnpacked(JSON.parse(document.getElementById("data").textContent));
  const shown = traceView(document.getElementById("trace"), data, { prefix: "", title: "Trace", keys: window, wheel: "always" });
  addEventListener("resize", shown.resize);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", shown.resize);
  window.windtunnelTrace = shown;
})();
