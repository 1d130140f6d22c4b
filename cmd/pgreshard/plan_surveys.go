package main

import (
	"fmt"
	"io"
	"strings"

	"pgreshard/survey"
)

// shownTables is how many tables' placements are printed, the largest; --report and --json have all.
const shownTables = 5

// writeSurveys prints what samples of the sources' rows tell.
func writeSurveys(w io.Writer, surveys []*survey.Report) error {
	if len(surveys) == 0 {
		return nil
	}
	fmt.Fprint(w, "\nwhere the rows will go; a share is within its ± in 95 of 100 samples\n")
	err := columns(w, func(t io.Writer) {
		fmt.Fprintln(t, "table\tread\tshares of the rows by shard\t±\tlargest key")
		for _, s := range surveys {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", s.Table, readWords(s), sharesWords(s.Shares), errorWords(s), largestWords(s))
		}
	})
	if err != nil {
		return err
	}
	for _, s := range surveys[:min(shownTables, len(surveys))] {
		if err := writeCosts(w, s); err != nil {
			return err
		}
		if err := writeSweep(w, s); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	return nil
}

func shardsWords(n int) string {
	if n == 1 {
		return "1 shard"
	}
	return fmt.Sprintf("%d shards", n)
}

func readWords(s *survey.Report) string {
	if s.Read.Rows == 0 && s.Read.Whole {
		return "empty"
	}
	if s.Read.Whole {
		return fmt.Sprintf("all %d rows", s.Read.Rows)
	}
	return fmt.Sprintf("%d of about %d rows", s.Read.Rows, s.Rows)
}

// sharesWords lists the shares of up to eight shards, of more the least and the largest.
func sharesWords(shares []survey.Share) string {
	const most = 8
	if least, largest := extremes(shares); least == largest && largest == 0 {
		return "-"
	}
	if len(shares) > most {
		least, largest := extremes(shares)
		return fmt.Sprintf("%.1f to %.1f %%", 100*least, 100*largest)
	}
	var words []string
	for _, s := range shares {
		words = append(words, fmt.Sprintf("%.1f", 100*s.Rows))
	}
	return strings.Join(words, "  ") + " %"
}

func extremes(shares []survey.Share) (least, largest float64) {
	least = 1
	for _, s := range shares {
		least, largest = min(least, s.Rows), max(largest, s.Rows)
	}
	return least, largest
}

func errorWords(s *survey.Report) string {
	if s.Read.Whole {
		return "none"
	}
	widest := 0.0
	for _, share := range s.Shares {
		widest = max(widest, share.Error)
	}
	return fmt.Sprintf("%.1f %%", 100*widest)
}

func largestWords(s *survey.Report) string {
	if len(s.Largest) == 0 {
		return "none stands out"
	}
	h := s.Largest[0]
	about := "about "
	if h.Exact {
		about = ""
	}
	return fmt.Sprintf("%s: %s%.1f %% of the rows, on shard %d", h.Key, about, 100*h.Share, h.Shard)
}

func subKeysWords(all []survey.SubKeys) string {
	var words []string
	for _, s := range all {
		words = append(words, fmt.Sprintf("K %d: %.2f on %d", s.K, s.Hottest, s.Hit))
	}
	return "the fullest shard against the average, and the shards that have a part of the key: " + strings.Join(words, "; ")
}

// writeCosts prints what each strategy makes of the step that is planned.
func writeCosts(w io.Writer, s *survey.Report) error {
	if len(s.Costs) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n%s: from %s to %d; * can be a rule's placement, the others are compared only\n", s.Table, shardsWords(s.Costs[0].From), s.Costs[0].To)
	return columns(w, func(t io.Writer) {
		fmt.Fprintln(t, "strategy\tkeys moved\trows moved\tbytes moved\tleast share\tlargest share\tmax/min\ta scan of a range of keys")
		for _, c := range s.Costs {
			fmt.Fprintf(t, "%s\t%.1f %%\t%.1f %%\t%.1f %%\t%.1f %%\t%.1f %%\t%s\t%s\n", strategyWords(c), 100*c.Keys, 100*c.Rows, 100*c.Bytes,
				100*c.Least, 100*c.Largest, ratioWords(c), c.Scans)
		}
	})
}

func strategyWords(c survey.Cost) string {
	if c.InMove {
		return c.Strategy + " *"
	}
	return c.Strategy
}

func ratioWords(c survey.Cost) string {
	if c.Ratio == 0 {
		return "a shard has none"
	}
	return fmt.Sprintf("%.2f", c.Ratio)
}

// writeSweep prints, for each number of shards, what moves there from the present one and how even it comes out.
func writeSweep(w io.Writer, s *survey.Report) error {
	if len(s.Sweep) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n%s: rows that move from %s on, step by step, and the largest share by the least\n", s.Table, shardsWords(s.Sweep[0].From))
	return columns(w, func(t io.Writer) {
		fmt.Fprintln(t, "shards\t"+strings.Join(strategyNames(), "\t"))
		for _, row := range sweepRows(s) {
			fmt.Fprint(t, row.Shards)
			for _, c := range row.Costs {
				fmt.Fprint(t, "\t", sweepWords(c))
			}
			fmt.Fprintln(t)
		}
	})
}

// strategyNames are short ones, for the head of a table.
func strategyNames() (names []string) {
	for _, s := range survey.Strategies() {
		names = append(names, strings.ReplaceAll(strings.ReplaceAll(s.Name, ", handed over whole", ""), ", all bounds redrawn evenly", ", redrawn"))
	}
	return names
}

// sweepRow is one number of shards with what each strategy makes of it, nil where it has no answer.
type sweepRow struct {
	Shards int
	Costs  []*survey.Cost
}

func sweepRows(s *survey.Report) (rows []sweepRow) {
	at := map[string]int{}
	for i, strategy := range survey.Strategies() {
		at[strategy.Name] = i
	}
	for i := range s.Sweep {
		c := &s.Sweep[i]
		if len(rows) == 0 || rows[len(rows)-1].Shards != c.To {
			rows = append(rows, sweepRow{c.To, make([]*survey.Cost, len(at))})
		}
		rows[len(rows)-1].Costs[at[c.Strategy]] = c
	}
	return rows
}

func sweepWords(c *survey.Cost) string {
	if c == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f %%, %s", 100*c.Rows, ratioWords(*c))
}
