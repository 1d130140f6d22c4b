package main

import (
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browser is a headless Chromium with one page, which is opened once.
type browser struct {
	t   testing.TB
	ctx context.Context

	mu    sync.Mutex
	asked []*network.EventRequestWillBeSent
	said  []string // on its console: warnings, errors, and what the page's policy forbade
}

// newBrowser starts one with a fresh profile; it is ended with the test.
func newBrowser(t testing.TB) *browser {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			program = found
			break
		}
	}
	if program == "" {
		t.Skip("no chromium, chromium-browser or google-chrome is installed (Debian: apt-get install chromium), so nobody looks at the page")
	}
	options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(program), chromedp.Headless, chromedp.NoFirstRun,
		chromedp.NoSandbox, chromedp.DisableGPU} // a sandbox does not work as root, and what is opened is ours
	for _, flag := range []string{"disable-quic", "disable-background-networking", "disable-component-update", "disable-sync", "disable-breakpad"} {
		options = append(options, chromedp.Flag(flag, true))
	}
	ctx, end := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	ctx, stop := chromedp.NewContext(ctx)
	t.Cleanup(func() { // returns when its processes are gone
		closing, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_ = chromedp.Cancel(closing)
		stop()
		end()
	})
	b := &browser{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, b.note); err != nil {
		t.Fatal(err)
	}
	return b
}

// note keeps what the page asks for and what the console says.
func (b *browser) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.asked = append(b.asked, e)
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelWarning || e.Entry.Level == log.EntryLevelError {
			b.said = append(b.said, fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL))
		}
	case *runtime.EventConsoleAPICalled:
		b.said = append(b.said, fmt.Sprintf("console.%s", e.Type))
	case *runtime.EventExceptionThrown:
		b.said = append(b.said, e.ExceptionDetails.Text)
	}
}

// looks is for how long a page may take to show what it should.
const looks = 2 * time.Minute

// ask evaluates an expression in the page, and waits where it is a promise.
func ask[T any](b *browser, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, looks)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// do is one step of a user.
func (b *browser) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, looks)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

// open opens the page, for the first and only time.
func (b *browser) open(url string) {
	b.t.Helper()
	b.do("open "+url, chromedp.EmulateViewport(1280, 900), chromedp.Navigate(url))
}

// sees waits until the page, which nobody touches, has changed so that all of its texts are there. The wait is for the
// document that was opened: it fails where that is loaded again.
func (b *browser) sees(texts ...string) {
	b.t.Helper()
	for _, text := range texts {
		b.holds(fmt.Sprintf("document.body.innerText.replace(/\\s+/g, ' ').includes(%q)", text))
	}
}

// holds waits until a condition holds in the page.
func (b *browser) holds(condition string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, looks)
	defer cancel()
	_, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`new Promise(function (done) {
		var observer = new MutationObserver(look);
		function look() { if (`+condition+`) { observer.disconnect(); done(true); } }
		observer.observe(document, { subtree: true, childList: true, characterData: true });
		look();
	})`, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("never in the page: %s: %v\n%s", condition, err, ask[string](b, "document.body.innerText"))
	}
}

// press clicks a button and answers what the page asks then.
func (b *browser) press(button string, answer bool) (question string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, looks)
	defer cancel()
	opened := chromedp.Events(ctx, page.JavascriptDialogOpening)
	clicked := make(chan error, 1)
	go func() { clicked <- chromedp.Do(ctx, chromedp.Click(chromedp.Search("//button[.='"+button+"']"))) }() // waits for the answer
	for dialog, err := range opened {
		if err == nil {
			question = dialog.Message
			_, err = chromedp.Call(ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: answer})
		}
		if err != nil {
			b.t.Errorf("press %s: %v", button, err)
		}
		break
	}
	if err := <-clicked; err != nil {
		b.t.Fatalf("press %s: %v", button, err)
	}
	return question
}

const phone = 375 // pixels

// fitsAPhone looks at the page as it is now at the width of a phone and in the dark, and goes back.
func (b *browser) fitsAPhone() {
	b.t.Helper()
	dark := func(value string) chromedp.Action[chromedp.Void] {
		return chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
			_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}}})
			return err
		})
	}
	b.do("a phone", chromedp.EmulateViewport(phone, 812, chromedp.EmulateMobile), dark("dark"))
	if got := ask[int](b, "document.documentElement.scrollWidth"); got > phone {
		b.t.Errorf("the page is %d wide on a phone of %d: %s", got, phone, ask[string](b, `Array.from(document.querySelectorAll("body *")).
			filter(function (e) { return !e.closest(".wide *") && e.getBoundingClientRect().right > `+fmt.Sprint(phone)+`; }).map(function (e) { return e.outerHTML.slice(0, 80); }).join("\n")`))
	}
	if got := ask[string](b, darkest); got != "" {
		b.t.Errorf("in the dark: %s", got)
	}
	b.do("a desk", chromedp.EmulateViewport(1280, 900), dark("light"))
	if light := ask[float64](b, shade+`shade("canvas")`); light < 0.9 {
		b.t.Errorf("in the light the background is %.2f", light)
	}
}

// keepsAside scrolls a table aside, as a reader with a phone does, and waits for what comes next: it stays there.
func (b *browser) keepsAside(table string) {
	b.t.Helper()
	b.do("a phone", chromedp.EmulateViewport(phone, 812, chromedp.EmulateMobile))
	if got := ask[float64](b, fmt.Sprintf(`(seen = document.getElementById(%q)).scrollLeft = 40; seen.scrollLeft`, table)); got != 40 {
		b.t.Errorf("%s is scrolled to %v", table, got)
	}
	b.holds(`!seen.isConnected`)
	if got := ask[float64](b, fmt.Sprintf(`document.getElementById(%q).scrollLeft`, table)); got != 40 {
		b.t.Errorf("%s was scrolled to 40 and is at %v", table, got)
	}
	b.do("a desk", chromedp.EmulateViewport(1280, 900))
}

// shade is how light a colour is as the browser draws it, from 0 to 1.
const shade = `function shade(colour) {
	var probe = document.createElement("i");
	probe.style.color = colour;
	document.body.append(probe);
	var parts = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
	probe.remove();
	return (0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]) / 255;
}
`

// darkest names what is not dark, or is not to be read on what is.
const darkest = shade + `(function () {
	var ground = getComputedStyle(document.documentElement).backgroundColor;
	if (ground !== "rgba(0, 0, 0, 0)" || shade("canvas") > 0.2) { return "the background is " + ground + " on " + shade("canvas"); }
	return Array.from(document.querySelectorAll("body *")).filter(function (e) {
		return e.innerText && shade(getComputedStyle(e).color) < 0.3;
	}).map(function (e) { return e.outerHTML.slice(0, 80); }).join("\n");
})()`

// complained fails for all that the console has said since it was asked last and that does not contain expected; empty:
// nothing is.
func (b *browser) complained(expected string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.said {
		if expected == "" || !strings.Contains(line, expected) {
			b.t.Errorf("on the console: %s", line)
		}
	}
	b.said = nil
}

// askedOnly fails where anybody but host was asked for anything, or a document was loaded more than once; it counts by
// path what was.
func (b *browser) askedOnly(host string) map[string]int {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	paths, documents := map[string]int{}, 0
	for _, e := range b.asked {
		to, err := url.Parse(e.Request.URL)
		if err != nil || to.Scheme != "http" || to.Host != host {
			b.t.Errorf("the page asked for %s", e.Request.URL)
			continue
		}
		paths[to.Path]++
		if e.Type == network.ResourceTypeDocument {
			documents++
		}
	}
	if documents != 1 {
		b.t.Errorf("%d documents were loaded", documents)
	}
	return paths
}
