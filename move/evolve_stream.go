package move

import (
	"math"

	"pgreshard/pg"
	"pgreshard/sink"
)

// renamed are the columns of a table that rows of a source call otherwise than the shards do: at first those from after
// the change, and, once the shards have the new name, those from before.
func (e *evolution) renamed(source int, into *pg.Table) map[string]string {
	if e == nil {
		return nil
	}
	out := map[string]string{}
	for _, c := range e.changes[source] {
		if c.Table != into.Name || c.Kind != columnRenamed {
			continue
		}
		if _, there := into.Column(c.Was.Name); there {
			out[c.Now.Name] = c.Was.Name
		} else {
			out[c.Was.Name] = c.Now.Name
		}
	}
	return out
}

// starts is the position from which a partition's changes are followed, 0: all of them. One that is not copied yet is
// copied as of a later position than any that is read now.
func (e *evolution) starts(source int, leaf uint32) pg.LSN {
	if e == nil {
		return 0
	}
	if at, ok := e.startsAt[leaf]; ok {
		return at
	}
	if t, ok := e.recorded[source].Tables[leaf]; !ok || t.Pending {
		return math.MaxUint64
	}
	return 0
}

// goneLeaves are the partitions of a root that went and that the shards still have, by OID.
func (e *evolution) goneLeaves(source int, root pg.Name) map[uint32]pg.Name {
	out := map[uint32]pg.Name{}
	if e == nil {
		return out
	}
	for _, c := range e.changes[source] {
		if c.Kind == leafGone && e.recorded[source].rootOf(shape{Name: c.Table}) == root {
			out[c.OID] = c.Leaf
		}
	}
	return out
}

// adapt tells a table of the stream what its rows from before the changes may carry.
func (e *evolution) adapt(source int, t *sink.Table) {
	if e == nil {
		return
	}
	t.Before = e.before[source]
	for _, c := range e.changes[source] {
		if c.Table == t.Source && c.Kind == columnDropped {
			t.Gone[c.Was.Name] = true
		}
	}
}
