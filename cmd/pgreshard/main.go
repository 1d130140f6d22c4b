// Command pgreshard moves a live PostgreSQL database from one set of shards to another. This package holds the flags,
// the configuration file, the environment and the wiring; what a move does is in package move, what is served over
// HTTP in package status.
package main

import (
	"context"
	"os"
	_ "time/tzdata" // cutover windows name time zones, and a container image may have none
)

func main() {
	ctx, stop := withSignals(context.Background())
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
