package main

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are those that a page's headings have.
func anchors(page string) (list []string) {
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		list = append(list, strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return list
}

// Every file and heading that the documentation points to is there.
func TestTheDocumentationPointsToWhatIsThere(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, page := range append(pages, "../../README.md") {
		text := read(t, page)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			to, err := url.Parse(m[1])
			if err != nil || to.Scheme != "" {
				continue
			}
			seen++
			file := page
			if to.Path != "" {
				file = filepath.Join(filepath.Dir(page), to.Path)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %s is not there", page, m[1])
			} else if to.Fragment != "" && !slices.Contains(anchors(read(t, file)), to.Fragment) {
				t.Errorf("%s: %s has no such heading", page, m[1])
			}
		}
	}
	if seen < 30 {
		t.Errorf("only %d links", seen)
	}
}
