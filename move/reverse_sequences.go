package move

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
)

// readOwn reads the sequences of a source that is to serve again. That may be long before the switch: what its columns get from
// then on comes from the shards, whose sequences and columns are read once more in the freeze, and what somebody takes from one
// of its sequences nevertheless is kept by SetSequences.
func (c *cutover) readOwn(ctx context.Context, source int, conn *pgx.Conn) (err error) {
	if c.Sequences == string(SequencesNone) {
		return nil
	}
	c.own[source], err = ReadSequences(ctx, conn, c.inv.tree(0), true)
	return err
}

// planBack sets a source's sequences above everything the shards have handed out since the switch, and nothing else of
// them: it goes on with the increment and the bounds it had. Where several sources hand out every Mth value each, each goes on
// with its own.
func (c *cutover) planBack(source int) ([]SequenceSetting, error) {
	own := slices.Clone(c.own[source])
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
