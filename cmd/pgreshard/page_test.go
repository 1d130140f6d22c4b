package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"

	"pgreshard/move"
	"pgreshard/pgtest"
	"pgreshard/status"
)

// A page that was opened during the copy and is never loaded again shows a whole move: every state, two cutovers by its
// button, of which the first is lost with its worker, another worker, and the end. Nobody but the worker is asked for
// anything, and nothing is complained of but that a worker which was killed does not answer.
func TestThePageShowsAWholeMoveAndMakesTheCutover(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	r := newRig(t, 3, pgtest.WorkloadOptions{Writers: 4, Rate: 100, Lookups: true},
		"[cutover]\nmax_freeze = \"120s\"\n[copy]\nworkers = 1\n") // the machine may be busy
	home := newGates(t, r.shards[0])
	stop := r.write()

	home.shut(t, "chunk")
	home.shut(t, "state streaming")
	worker := r.start("migrate", "--hold")
	home.await(t, worker, "chunk")
	r.until(worker, func(s move.Status) bool { return s.State == move.StateCopying })
	b.open("http://" + r.listen + "/")
	b.sees(r.name+" copying", "copying: rows are being copied; the source serves", "Layout 1 serves; the move leads to layout 2.", "Safe to cut over: no, because ")
	b.holds(`document.querySelectorAll("progress").length === 7 && !Array.from(document.querySelectorAll("progress")).every(function (p) { return p.value === 100; })`)
	b.fitsAPhone()
	home.open(t, "chunk")
	b.sees(r.name + " indexing")
	b.holds(`Array.from(document.querySelectorAll("progress")).every(function (p) { return p.value === 100; })`)
	home.await(t, worker, "state streaming")
	home.open(t, "state streaming")
	b.sees(r.name+" streaming", "streaming: the destination follows the source", "Safe to cut over: yes.")
	picture, measured := os.Getenv("PAGE_SCREENSHOT"), 2
	if picture != "" {
		measured = 10 // of which there is one every three seconds
	}
	b.holds(fmt.Sprintf(`document.querySelector("#streams svg path")?.getAttribute("d").split("L").length >= %d`, measured))
	b.keepsAside("streams")
	b.holds(`document.title === "` + r.name + `: streaming"`)
	b.fitsAPhone()
	b.complained("")

	b.holds(offered("Verify", "Rehearse the cutover", "Cut over"))
	b.do("type another token", chromedp.SendKeys(chromedp.ID("token"), "not-"+r.token()))
	b.press("Cut over", true)
	b.sees("Cut over: this path asks for the token")
	b.complained("401")
	ask[bool](b, `document.getElementById("token").select() || true`)
	b.do("type the token over it", chromedp.SendKeys(chromedp.ID("token"), r.token()))
	if question := b.press("Cut over", false); !strings.Contains(question, "Writes will be refused for a moment, and the new layout serves.") {
		t.Errorf("the page asked %q", question)
	}
	if got := r.state(); got != "streaming" {
		t.Fatalf("after a no the move is %s", got)
	}

	home.shut(t, "verify after")
	b.press("Cut over", true)
	b.sees(r.name+" cutting_over", "cutting_over: writes are being moved over, step seal", "Cut over …", "Step: seal", "Last comparison: clean")
	b.holds(stepsDone("arm", "check", "freeze", "drain", "finish", "verify"))
	b.holds(offered())
	home.await(t, worker, "verify after")
	b.fitsAPhone()
	b.screenshot(picture)
	b.complained("")
	pid := worker.cmd.Process.Pid
	worker.kill()
	b.sees("The worker does not answer", "Cut over: no answer; look at the status before trying again")
	worker = r.start("migrate", "--hold")
	r.awaitLease(worker, pid)
	home.open(t, "verify after")
	b.sees(r.name+" streaming", "Safe to cut over: yes.")
	b.holds(`document.getElementById("link").textContent === ""`)
	b.complained("ERR_")

	r.app.Stay(true) // so that both sides stay what they are at the switch
	home.shut(t, "freeze after")
	b.press("Cut over", true)
	b.sees(r.name+" cutting_over", "Step: drain")
	b.holds(stepsDone("arm", "check", "freeze"))
	home.await(t, worker, "freeze after")
	home.open(t, "freeze after")
	b.sees(r.name+" switched", "Layout 2 serves, the one the move led to.", "Cut over: done", "Writes were refused for ", "A rollback would lose nothing.")
	b.holds(stepsDone("arm", "check", "freeze", "drain", "finish", "verify", "seal", "switch", "open"))
	b.fitsAPhone()
	r.compare()
	r.placed()
	r.layoutServes(2)

	r.app.Stay(false)
	if err := r.load.Committed(t.Context(), 50); err != nil {
		t.Fatal(err)
	}
	stop()
	b.complained("")
	b.holds(offered("Roll back", "Complete"))
	if question := b.press("Complete", true); !strings.Contains(question, "there is no way back then") {
		t.Errorf("the page asked %q", question)
	}
	if code, said := worker.wait(t); code != exitDone {
		t.Fatalf("the worker ended with %d:\n%s", code, said)
	}
	b.sees(r.name+" completed", "completed: the move is done and cleaned up", "Complete: done", "The worker has ended. This is the last it said.")
	b.holds(offered())
	b.complained("ERR_")
	if paths := b.askedOnly(r.listen); paths["/cutover"] != 3 || paths["/complete"] != 1 {
		t.Errorf("the page asked for %v", paths)
	}
	if err := r.load.Ledger().Check(t.Context(), r.conns(r.shards)...); err != nil {
		t.Error(err)
	}
}

// stepsDone is the condition that the page names these steps of a cutover, in this order, as done.
func stepsDone(names ...string) string {
	return fmt.Sprintf(`Array.from(document.querySelectorAll(".steps li")).map(function (s) { return s.firstChild.textContent.trim(); }).join(" ") === %q`, strings.Join(names, " "))
}

// offered is the condition that the page offers these verbs and no others.
func offered(names ...string) string {
	return fmt.Sprintf(`Array.from(document.querySelectorAll("#verbs button")).filter(function (b) { return b.checkVisibility(); }).map(function (b) { return b.textContent; }).join(", ") === %q`, strings.Join(names, ", "))
}

// A proxy in front of a worker answers for it while it is down. A browser takes that as the end of the events, the page does not.
func TestThePageComesBackThroughAProxyThatAnsweredForAWorkerThatWasDown(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	var state atomic.Value
	state.Store(move.StateStreaming)
	worker := status.New(status.Config{Snapshot: func() move.Status { return move.Status{Move: "split", State: state.Load().(string)} }})
	refused := make(chan struct{}, 100)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			w.WriteHeader(http.StatusBadGateway)
			refused <- struct{}{}
			return
		}
		worker.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close) // once the browser has gone, who does not let go of it
	b := newBrowser(t)
	b.open(proxy.URL)
	b.sees("split streaming")
	down.Store(true)
	proxy.CloseClientConnections()
	<-refused
	b.sees("The worker does not answer")
	state.Store(move.StateSwitched)
	down.Store(false)
	b.sees("split switched")
	b.askedOnly(proxy.Listener.Addr().String())
}

// token is what a user finds in the worker's state directory.
func (r *rig) token() string {
	r.t.Helper()
	dir, _ := strings.CutPrefix(r.env[0], stateVariable+"=")
	return strings.TrimSpace(read(r.t, dir+"/"+tokenFile))
}

// screenshot leaves a picture of the whole page in a file; "": it takes none.
func (b *browser) screenshot(file string) {
	b.t.Helper()
	if file == "" {
		return
	}
	picture, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(file, picture, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}
