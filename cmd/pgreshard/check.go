package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pgreshard/move"
	"pgreshard/pg"
	"pgreshard/status"
	"pgreshard/verify/fanout"
)

func (a *app) checkCommand() *cobra.Command {
	var asJSON bool
	var consistency string
	o := move.CheckOptions{}
	c := &cobra.Command{
		Use:   "check",
		Short: "Ask both sides what [[checks]] say, and show it side by side",
		Long: "Ask both sides what [[checks]] say, and show it side by side. With --consistency strong the leaders answer: where a worker\n" +
			"follows the sources, exactly as of one position of each, while applications write; else as they are now. bounded: each\n" +
			"shard's leader as it is now or, where it does not answer, a replica at most --behind behind. eventual: any node as it is\n" +
			"now, replicas first. A shard that does not answer is named with its node and why, and then nothing is proved.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			switch o.Consistency = fanout.Consistency(consistency); o.Consistency {
			case fanout.Strong, fanout.Bounded, fanout.Eventual:
			default:
				return usage("--consistency strong, bounded or eventual", "there is no consistency %q", consistency)
			}
			return a.with(c.Context(), func(e engine, cfg *Config) error {
				if len(cfg.Checks) == 0 {
					return usage("docs/configuration.md has an example", "there are no [[checks]] in %s", a.config)
				}
				r, err := a.check(c.Context(), e, cfg, o)
				if err != nil {
					return err
				}
				return r.ended(a.print(asJSON, r))
			})
		},
	}
	c.Flags().StringVar(&consistency, "consistency", string(fanout.Strong), "strong, bounded or eventual: which nodes answer")
	offer(c, "consistency", cobra.ShellCompDirectiveNoFileComp, string(fanout.Strong), string(fanout.Bounded), string(fanout.Eventual))
	c.Flags().DurationVar(&o.Behind, "behind", time.Minute, "with bounded: how far behind a replica may be")
	c.Flags().DurationVar(&o.Timeout, "timeout", 10*time.Minute, "for what one node is asked; 0: as long as it takes")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// check has the worker ask, where one follows its sources and the answer is to be as of one position; else the databases are
// asked as they are.
func (a *app) check(ctx context.Context, e engine, c *Config, o move.CheckOptions) (checkReport, error) {
	if s, err := askWorker(ctx, c); o.Consistency == fanout.Strong && err == nil && s.Move == c.Move.Name && s.State == move.StateStreaming {
		var found move.CheckReport
		err := a.ask(ctx, e, c, "check", checkOptions{o, c.checks()}, &found)
		return checkReport{&found}, err
	}
	found, err := e.Check(ctx, o)
	return checkReport{found}, err
}

// checkOptions are what `check` asks of a worker. The checks are the command's: the worker asks its own, and only where they
// are the same.
type checkOptions struct {
	move.CheckOptions
	Checks []move.Check
}

// checkVerb is POST /check.
func checkVerb(e engine, c *Config) status.Verb {
	return verb(func(ctx context.Context, o checkOptions) (*move.CheckReport, error) {
		if !reflect.DeepEqual(o.Checks, c.checks()) {
			return nil, usage("start the worker again with this file, or ask with --consistency bounded", "the worker was started with other [[checks]]")
		}
		return e.CheckNow(ctx, o.CheckOptions)
	})
}

// checks are the configuration's as arguments of a move.
func (c *Config) checks() (list []move.Check) {
	for _, s := range c.Checks {
		keys, _ := s.keys() // wrong ones were told when the file was read
		list = append(list, move.Check{Table: s.Table, Aggregates: s.Aggregates, GroupBy: s.GroupBy, Where: s.Where, Keys: keys})
	}
	return list
}

// keys are the texts of each key: a value, or a list of them where rows are placed by several columns.
func (s checkSection) keys() (all [][]string, err error) {
	for _, key := range s.Keys {
		values, several := key.([]any)
		if !several {
			values = []any{key}
		}
		var texts []string
		for _, value := range values {
			switch v := value.(type) {
			case string:
				texts = append(texts, v)
			case int64:
				texts = append(texts, strconv.FormatInt(v, 10))
			default:
				return nil, fmt.Errorf("%v is neither a string nor a whole number", value)
			}
		}
		all = append(all, texts)
	}
	return all, nil
}

// replicas are a cluster's, by shard.
func (c clusterSection) replicas() [][]pg.Shard {
	list := make([][]pg.Shard, len(c.Shards))
	for i, s := range c.Shards {
		for _, r := range s.Replicas {
			list[i] = append(list[i], pg.Shard{Number: i, URL: r.expand})
		}
	}
	return list
}

// checkReport is what came of the checks, for a person and as JSON.
type checkReport struct{ *move.CheckReport }

func (r checkReport) MarshalJSON() ([]byte, error) { return json.Marshal(r.CheckReport) }

func (r checkReport) any(s fanout.State) bool {
	return slices.ContainsFunc(r.Checks, func(c *fanout.Comparison) bool { return c.State == s })
}

// OK says that both sides answered alike.
func (r checkReport) OK() bool { return !r.any(fanout.Differs) && !r.any(fanout.Partial) }

// ended is how the command ends after its report was printed.
func (r checkReport) ended(err error) error {
	switch {
	case err != nil:
		return err
	case r.any(fanout.Partial):
		return &exitError{code: exitFailed, hint: "see that the nodes named above run, and ask again", err: errors.New("not every shard answered, so nothing is proved")}
	case r.At != nil:
		return checked(nil, r, "source and destination differ", "`pgreshard verify` lists the rows")
	}
	return checked(nil, r, "source and destination differ", "rows on their way show as differences while applications write: ask again, or with --consistency strong while a worker follows")
}

func (r checkReport) WriteText(w io.Writer) error {
	for _, c := range r.Checks {
		if err := writeComparison(w, c, true); err != nil {
			return err
		}
	}
	asOf := "each node as it was when it was asked"
	if r.At != nil {
		asOf = "exactly as of " + strings.Join(r.At, ", ") + " on the sources"
	}
	_, err := fmt.Fprintln(w, asOf)
	return err
}

// writeComparison writes both sides beside each other, all groups or those that differ.
func writeComparison(w io.Writer, c *fanout.Comparison, all bool) error {
	head := "check of " + c.Table
	if c.Copy != nil {
		head += fmt.Sprintf(", copy of shard %d", *c.Copy)
	}
	if c.Where != "" {
		head += " where " + strings.Join(strings.Fields(c.Where), " ")
	}
	fmt.Fprintf(w, "%s: %s\n", head, c.State)
	for _, f := range c.Source.Failures {
		fmt.Fprintf(w, "  source %s\n", f)
	}
	for _, f := range c.Destination.Failures {
		fmt.Fprintf(w, "  destination %s\n", f)
	}
	if !all && c.Differences() == 0 {
		return nil
	}
	return columns(w, func(t io.Writer) {
		fmt.Fprintln(t, strings.Join(append(append([]string{" "}, c.GroupBy...), "", "source", "destination"), "\t"))
		for _, l := range c.Lines {
			for i, name := range c.Aggregates {
				differs := slices.Contains(l.Differs, name)
				if !all && !differs {
					continue
				}
				cells := []string{" "}
				for _, g := range l.Group {
					cells = append(cells, valueWords(g))
				}
				cells = append(cells, name, of(l.Source, i), of(l.Destination, i))
				if differs {
					cells = append(cells, "differs")
				}
				fmt.Fprintln(t, strings.Join(cells, "\t"))
			}
		}
	})
}

// of is a value of a side that may have none.
func of(values []*string, i int) string {
	if values == nil {
		return "-"
	}
	return valueWords(values[i])
}

// valueWords is a value on one line, cut where it is long.
func valueWords(v *string) string {
	const most = 64
	if v == nil {
		return "null"
	}
	text := strings.Map(func(r rune) rune {
		if r < ' ' {
			return '�'
		}
		return r
	}, *v)
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return cmp.Or(text, "''")
}
