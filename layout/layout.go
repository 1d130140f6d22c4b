package layout

import (
	"fmt"
	"strconv"

	"pgreshard/pg"
)

// Shard is a shard's number within one layout, from 0.
type Shard int

// String is "shard 3".
func (s Shard) String() string { return "shard " + strconv.Itoa(int(s)) }

// ParseShard reads a shard's number as text, which must be below shards.
func ParseShard(text []byte, shards int) (Shard, error) {
	n, err := parseInt(text, 0, int64(shards)-1)
	if err != nil {
		return 0, fmt.Errorf("not the number of one of %d shards", shards)
	}
	return Shard(n), nil
}

// Layout is a Spec that was found to hold for certain tables: one Rule for each. It is never changed and safe for use by
// many goroutines.
type Layout struct {
	spec   Spec
	rules  []*Rule
	byName map[pg.Name]*Rule
	gaps   []Gap
	unused []string
}

// Version is the layout's number.
func (l *Layout) Version() int { return l.spec.Version }

// Database is the database the rules speak of.
func (l *Layout) Database() string { return l.spec.Database }

// Shards is how many shards there are.
func (l *Layout) Shards() int { return l.spec.Shards }

// Spec is what the layout was compiled from, with the rules of its own database only and every value of a mapping as
// text: what the layout record keeps. Two layouts place alike if their Specs marshal alike.
func (l *Layout) Spec() Spec { return l.spec }

// Rule is the rule of a table (a partition root or an ordinary table), nil where none covers it.
func (l *Layout) Rule(name pg.Name) *Rule { return l.byName[name] }

// Rules lists the rules by ID, which is the order of the tables given to Compile.
func (l *Layout) Rules() []*Rule { return l.rules }

// Gaps lists the stretches of key values that no range, and no default, of a mapping covers. Where a list holds a value
// inside a gap, that value has a shard all the same.
func (l *Layout) Gaps() []Gap { return l.gaps }

// Unused names, in words for the operator, the rules that no table of the move comes under.
func (l *Layout) Unused() []string { return l.unused }

// Gap is a stretch of key values without a shard: from From (inclusive) to To (exclusive), empty where there is no bound.
type Gap struct {
	Table  pg.Name `json:"table"`
	Column string  `json:"column"`
	From   string  `json:"from,omitempty"`
	To     string  `json:"to,omitempty"`
}

// String says it in words.
func (g Gap) String() string {
	switch {
	case g.From == "":
		return fmt.Sprintf("%s: no range covers %s below %s", g.Table, g.Column, g.To)
	case g.To == "":
		return fmt.Sprintf("%s: no range covers %s from %s on", g.Table, g.Column, g.From)
	}
	return fmt.Sprintf("%s: no range covers %s from %s to below %s", g.Table, g.Column, g.From, g.To)
}
