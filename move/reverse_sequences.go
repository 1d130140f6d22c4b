package move

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// planBack sets a source's sequences above everything the shards have handed out since the switch, and nothing else of
// them: it goes on with the increment and the bounds it had. Where several sources hand out every Mth value each, each goes on
// with its own.
func (c *cutover) planBack(ctx context.Context, conn *pgx.Conn) ([]SequenceSetting, error) {
	if c.Sequences == string(SequencesNone) {
		return nil, nil
	}
	own, err := ReadSequences(ctx, conn, c.inv.tree(0), true)
	if err != nil {
		return nil, err
	}
	for i := range own {
		if last := own[i].Last; last != nil {
			own[i].Start = *last // that is among those it hands out, whatever it was said to start with
		}
	}
	readings := [][]Sequence{own}
	for _, reading := range c.sequences {
		readings = append(readings, asDefined(reading, own))
	}
	return PlanSequences(SequencesCopy, readings, 1, 0, 1)
}

// asDefined are the sequences of a reading that own has too, each with own's definition and the values it was read with.
func asDefined(reading, own []Sequence) (out []Sequence) {
	for _, s := range reading {
		for _, o := range own {
			if o.Name == s.Name {
				o.Last, o.Furthest = s.Last, s.Furthest
				out = append(out, o)
			}
		}
	}
	return out
}
