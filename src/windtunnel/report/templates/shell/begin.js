// Last in the script: the views are all added by now.
(async () => {
  const data = JSON.parse(document.getElementById("data").textContent);
  document.getElementById("data").remove();  // the text is not needed twice
  if (data.ranks) data.ranks = await unpackAll(data.ranks);
  openPage(data);
})();
