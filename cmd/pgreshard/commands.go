package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pgreshard/move"
	"pgreshard/verify"
)

func (a *app) planCommand() *cobra.Command {
	var asJSON bool
	var file, shards string
	var o move.PlanOptions
	c := &cobra.Command{
		Use:   "plan",
		Short: "Say what a move would do and what stands in its way; changes nothing",
		Long: "Say what a move would do, where the rows will go and what stands in the way. It changes nothing, and of each table\n" +
			"it reads a sample: about 30,000 rows, 16 MB at most, and the largest keys once more to count them.",
		Example: "  pgreshard plan --placements\n  pgreshard plan --shards 8..16 --report plan.html",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if o.From, o.To, err = stretch(shards); err != nil {
				return err
			}
			return a.withSources(c.Context(), func(e engine, cfg *Config) error {
				o.ShowKeys = cfg.General.ShowKeys
				p, err := e.Plan(c.Context(), o)
				if err != nil {
					return err
				}
				if err := writeReport(file, p); err != nil {
					return err
				}
				return checked(a.print(asJSON, p), p, "problems block the move", "")
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringVar(&file, "report", "", "write the plan to `file` as well: a page where it ends in .html")
	offer(c, "report", cobra.ShellCompDirectiveDefault)
	c.Flags().BoolVar(&o.Placements, "placements", false, "compare ways to place rows, on the sampled keys")
	c.Flags().StringVar(&shards, "shards", "", "compare them for each number of shards of a `stretch`, as 8..16")
	c.Flags().BoolVar(&o.EveryKey, "lookups", false, "ask for the mapping row of every key, not of a sample")
	return c
}

// stretch reads "8..16", or "8" alone; nothing is 0.
func stretch(text string) (from, to int, err error) {
	const most = 1024
	if text == "" {
		return 0, 0, nil
	}
	low, high, two := strings.Cut(text, "..")
	if !two {
		high = low
	}
	from, errFrom := strconv.Atoi(low)
	to, errTo := strconv.Atoi(high)
	if errFrom != nil || errTo != nil || from < 1 || to < from || to > most {
		return 0, 0, usage("--shards 8..16", "--shards %q is not a stretch of numbers of shards, from 1 to %d", text, most)
	}
	return from, to, nil
}

// checked turns a result that is not well into exit 3, after it was printed.
func checked(err error, r report, what, hint string) error {
	if err == nil && !r.OK() {
		return &exitError{code: exitCheck, hint: hint, err: errors.New(what)}
	}
	return err
}

// writeReport puts a result into a file, where one is named.
func writeReport(file string, r report) (err error) {
	if file == "" {
		return nil
	}
	f, err := os.Create(file)
	if err != nil {
		return usage("name a file that can be written", "write the report: %w", err)
	}
	write := r.WriteText
	if page, ok := r.(interface{ WriteHTML(io.Writer) error }); ok && strings.HasSuffix(file, ".html") {
		write = page.WriteHTML
	}
	return errors.Join(write(f), f.Close())
}

func (a *app) verifyCommand() *cobra.Command {
	var asJSON, repair bool
	c := &cobra.Command{
		Use:   "verify",
		Short: "Compare source and destination",
		Long: "Compare source and destination. Where a worker follows the sources, it compares exactly as of one position of each, while\n" +
			"applications write; what it finds keeps the cutover from being made until a later comparison finds nothing.\n" +
			"Else the databases are compared as they are, which is exact where nothing writes.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(c.Context(), func(e engine, cfg *Config) error {
				r, exact, err := a.verify(c.Context(), e, cfg, repair)
				if err != nil {
					return err
				}
				err = a.print(asJSON, r)
				if v, ok := r.(verifyReport); ok && err == nil && v.Moving() {
					return &exitError{code: exitCheck, hint: "compare again when nothing writes; the cutover compares in its freeze",
						err: errors.New("no row differs, but tables were written while they were compared, so it is not proved that they are equal")}
				}
				hint := "rows on their way show as differences while applications write: compare again; what stays is a difference"
				if exact {
					hint = "mend the rows on the shards, or start over, and compare again: until nothing is found there is no cutover"
				}
				return checked(err, r, "source and destination differ", hint)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, one object per table")
	c.Flags().BoolVar(&repair, "repair", false, "make the rows that differ as the sources have them, and compare again; where no worker runs, this process is the move's for as long as that takes")
	return c
}

// verify has the worker compare, where one follows its sources: that is exact beside writers. Else the databases are compared
// as they are.
func (a *app) verify(ctx context.Context, e engine, c *Config, repair bool) (r report, exact bool, err error) {
	if repair { // by a worker, which this process is where none runs
		r, err := a.askVerify(ctx, e, c, true)
		if errors.Is(err, errNoWorker) {
			var found *move.RepairReport
			if found, err = e.RepairStopped(ctx); found != nil && found.After != nil {
				r = verifyReport{Report: found.After, repaired: *found}
			}
		}
		return r, true, err
	}
	if s, err := askWorker(ctx, c); err == nil && s.Move == c.Move.Name && s.State == move.StateStreaming {
		r, err := a.askVerify(ctx, e, c, false)
		return r, true, err
	}
	r, err = e.Verify(ctx)
	return r, false, err
}

func (a *app) askVerify(ctx context.Context, e engine, c *Config, repair bool) (report, error) {
	var found move.RepairReport
	if err := a.ask(ctx, e, c, "verify", verifyOptions{Repair: repair}, &found); err != nil {
		return nil, err
	}
	if found.After == nil {
		found.After = &verify.Report{}
	}
	return verifyReport{Report: found.After, repaired: found}, nil
}

func (a *app) routeCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "route [TABLE] KEY...",
		Short: "Say which shard a key belongs to",
		Long: "Say which shard a key belongs to under the layout that serves, and what a lookup translates it into.\n" +
			"Without a table, where all rules agree. A key of several columns is given as one argument each, behind the table.",
		Example: "  pgreshard route orders 42\n  pgreshard route measures 42 eu",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			table, key := "", args
			if len(args) > 1 {
				table, key = args[0], args[1:]
			}
			return a.with(c.Context(), func(e engine, _ *Config) error {
				r, err := e.Route(c.Context(), table, key)
				if err != nil {
					return err
				}
				return a.print(asJSON, r)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) layoutCommand() *cobra.Command {
	var asJSON bool
	var format string
	c := &cobra.Command{
		Use:   "layout",
		Short: "Print the layout that serves, and its version",
		Long: "Print the layout that serves and its version, its shards with their nodes, and the rules that place rows on them, as the\n" +
			"databases have it recorded. No worker is needed.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if format != "" && (format != formatPgDog || asJSON) {
				return usage("--format "+formatPgDog+", without --json", "there is no format %q", format)
			}
			return a.with(c.Context(), func(e engine, _ *Config) error {
				r, err := e.Layout(c.Context())
				if err != nil {
					return err
				}
				if dog, ok := r.(interface{ writePgDog(io.Writer) error }); ok && format != "" {
					return dog.writePgDog(a.stdout)
				}
				return a.print(asJSON, r)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringVar(&format, "format", "", "pgdog: as sections of pgdog.toml")
	offer(c, "format", cobra.ShellCompDirectiveNoFileComp, formatPgDog)
	return c
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return writeVersion(a.stdout) },
	}
}

// writeVersion prints what the Go toolchain noted of the commit it built.
func writeVersion(w io.Writer) error {
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		version = info.Main.Version
	}
	_, err := fmt.Fprintf(w, "pgreshard %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
