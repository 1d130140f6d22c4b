"use strict";
// The server renders the page; an event says that it has something new to show, and the part that changes is fetched again.
(function () {
  var link = document.getElementById("link"), fetching = false, again = false;
  function show() {
    if (fetching) { again = true; return; }
    fetching = true;
    fetch("/", { cache: "no-store" }).then(function (r) {
      if (!r.ok) { throw new Error(r.status); }
      return r.text();
    }).then(function (text) {
      var page = new DOMParser().parseFromString(text, "text/html");
      document.getElementById("live").replaceWith(page.getElementById("live"));
      document.title = page.title;
      link.textContent = "";
    }).catch(function () { link.textContent = "The worker does not answer; trying again."; }).finally(function () {
      fetching = false;
      if (again) { again = false; show(); }
    });
  }
  var events = new EventSource("/events");
  events.onmessage = show;
  events.onerror = function () { link.textContent = "The worker does not answer; trying again."; };
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
