"use strict";
// The server renders what the page shows, and sends it anew whenever it is not what it was.
(function () {
  var link = document.getElementById("link");
  function show(event) {
    var was = document.getElementById("live"), now = new DOMParser().parseFromString(JSON.parse(event.data), "text/html").getElementById("live"), aside = {};
    was.querySelectorAll(".wide").forEach(function (table) { aside[table.id] = table.scrollLeft; });
    was.replaceWith(now);
    now.querySelectorAll(".wide").forEach(function (table) { table.scrollLeft = aside[table.id] || 0; });
    document.querySelectorAll("#verbs button").forEach(function (b) { b.hidden = b.dataset.in !== now.dataset.state; });
    document.title = now.dataset.title;
    link.textContent = "";
  }
  function watch() {
    var events = new EventSource("/live");
    events.onmessage = show;
    events.onerror = function () {
      link.textContent = "over" in document.getElementById("live").dataset ? "The worker has ended. This is the last it said."
        : "The worker does not answer; trying again. This is the last it said.";
      // The browser itself tries again only where nobody answered, not where a proxy did for a worker that is down.
      if (events.readyState === EventSource.CLOSED) { setTimeout(watch, 2000); }
    };
  }
  watch();
  var form = document.getElementById("verbs");
  if (!form) { return; }
  form.addEventListener("submit", function (e) {
    e.preventDefault();
    var b = e.submitter, said = document.getElementById("said");
    if (b.dataset.ask && !confirm(b.dataset.ask)) { return; }
    said.textContent = b.textContent + " …";
    fetch("/" + b.value, { method: "POST", headers: { "Authorization": "Bearer " + document.getElementById("token").value, "Content-Type": "application/json" }, body: b.dataset.body })
      .then(function (r) { return r.json(); })
      .then(function (a) { said.textContent = b.textContent + ": " + (a.error ? a.error + (a.hint ? " (" + a.hint + ")" : "") : "done"); })
      .catch(function () { said.textContent = b.textContent + ": no answer; look at the status before trying again"; });
  });
})();
