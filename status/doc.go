// Package status serves what a move says about itself: a page for people, JSON for programs, metrics for Prometheus,
// and where a key lives. It reads move's snapshot at each request and holds no state of its own. What a
// POST asks for is done by who gave it the verbs.
package status
