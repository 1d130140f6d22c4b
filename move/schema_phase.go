package move

import (
	"fmt"
	"slices"
	"strings"

	"pgreshard/pg"
)

// Phase is a part of a schema that is restored at one time.
type Phase int

// The phases, in the order they are restored. Foreign keys belong to none: see ForeignKeys.
const (
	phaseNone Phase = iota
	// PhaseTables: schemas, types, functions, tables, sequences, defaults, views, and of the indexes only those that
	// tell rows apart, because copying into other indexes is dear.
	PhaseTables
	// PhaseIndexes: all other indexes that forbid nothing, check constraints, extended statistics.
	PhaseIndexes
	// PhaseUnique: unique and exclusion constraints and unique indexes. A resumed copy has rows of different moments,
	// which may break them until the stream has passed the last of those.
	PhaseUnique
	// PhaseTriggers: rules, triggers, row-security policies, default privileges.
	PhaseTriggers
)

// String names the phase in messages.
func (p Phase) String() string {
	return [...]string{"nothing", "tables", "indexes", "unique constraints", "triggers"}[p]
}

// builds says that a phase builds indexes, each by itself; the others are one transaction.
func (p Phase) builds() bool { return p == PhaseIndexes || p == PhaseUnique }

// assign gives every entry its phase: what its kind says, but never before the latest phase of what it depends on (a
// view that groups by a primary key, a comment on an index). What depends on something left out is left out.
func (d *Dump) assign() error {
	skip := d.skipped()
	moved := map[pg.Name]bool{}
	for _, t := range d.opts.Tables {
		moved[t] = true
	}
	byID := map[int]*entry{}
	for i := range d.entries {
		e := &d.entries[i]
		byID[e.id] = e
		phase, why, err := d.phaseOf(e, moved, skip)
		if err != nil {
			return err
		}
		e.phase, e.left = phase, why
	}
	// The archive lists dependencies before what depends on them within a section only, so this repeats until
	// nothing changes.
	for changed := true; changed; {
		changed = false
		for i := range d.entries {
			e := &d.entries[i]
			for _, id := range e.deps {
				if on := byID[id]; on != nil && e.follow(on) {
					changed = true
				}
			}
		}
	}
	return d.collectLeft(moved)
}

// follow applies the phase of an entry that e depends on; it says whether e changed.
func (e *entry) follow(on *entry) bool {
	switch {
	case e.left != "":
		return false
	case on.left != "":
		e.left = "needs " + on.text + ", which is left out"
		if on.left == leftForeignKey {
			e.left = leftForeignKey
		}
		e.phase = phaseNone
		return true
	case on.phase > e.phase:
		e.phase = on.phase
		return true
	}
	return false
}

const leftForeignKey = "foreign keys are made apart"

// phaseOf is what an entry's own kind says: a phase, or why it is left out.
func (d *Dump) phaseOf(e *entry, moved map[pg.Name]bool, skip map[string]bool) (Phase, string, error) {
	if e.oid == 0 || !knownClass(e.class) {
		return classPhase(object{}, e.class, e.oid), "", nil
	}
	o, ok := d.objects[objectID{e.class, e.oid}]
	if !ok {
		return 0, "", fmt.Errorf("%s was made while the schema was read; hint: run the same command again", e.text)
	}
	switch {
	case e.class == classEventTrigger:
		return phaseNone, "event triggers are not moved", nil
	case o.ours:
		return phaseNone, "belongs to pgreshard", nil
	case o.kind == "fk":
		return phaseNone, leftForeignKey, nil
	case o.kind == "table" && !moved[o.table]:
		return phaseNone, "the table is not moved", nil
	case o.kind == "unique" && d.anySkipped(o, skip):
		return phaseNone, "[schema] skip", nil
	case d.identity(o):
		return PhaseTables, "", nil
	}
	return classPhase(o, e.class, e.oid), "", nil
}

// identity says that an index, or the index behind a constraint, tells rows apart.
func (d *Dump) identity(o object) bool {
	if o.index != 0 {
		o = d.objects[objectID{classRelation, o.index}]
	}
	return o.identityIndex
}

// anySkipped looks for an index or constraint, and for what it is a partition of, in [schema] skip.
func (d *Dump) anySkipped(o object, skip map[string]bool) bool {
	for {
		if skip[o.name] {
			return true
		}
		index := objectID{classRelation, o.index}
		if o.index == 0 {
			index = o.id
		}
		parent := d.objects[index].parent
		if parent == 0 {
			return false
		}
		o = d.objects[objectID{classRelation, parent}]
	}
}

func (d *Dump) skipped() map[string]bool {
	out := map[string]bool{}
	for _, s := range d.opts.Skip {
		if name, ok := strings.CutPrefix(s, "unique:"); ok {
			out[name] = true
		}
	}
	return out
}

// collectLeft records what is left out and refuses to leave out what a moved table cannot be without.
func (d *Dump) collectLeft(moved map[pg.Name]bool) error {
	seen := map[pg.Name]bool{}
	for _, e := range d.entries {
		o := d.objects[objectID{e.class, e.oid}]
		switch {
		case e.left == "" && o.kind == "table":
			seen[o.table] = true
			continue
		case e.left == "" || e.left == leftForeignKey:
			continue
		case moved[o.table] && (o.kind == "table" || o.kind == "default"):
			return fmt.Errorf("%s cannot be moved: it %s; hint: include in [tables] what it depends on", e.text, e.left)
		case moved[o.table] && d.identity(o):
			return fmt.Errorf("%s tells the rows of %s apart and cannot be left out (%s)", o.name, o.table, e.left)
		}
		d.Left = append(d.Left, e.text+": "+e.left)
	}
	for _, t := range d.opts.Tables {
		if !seen[t] {
			return fmt.Errorf("table %s is not in the source's schema; hint: run the same command again", t)
		}
	}
	slices.Sort(d.Left)
	return nil
}

// tablesThere says whether all moved tables exist on a shard, false where none does; some of them are an error.
func (d *Dump) tablesThere(there map[objectID]object) (bool, error) {
	names := map[pg.Name]bool{}
	for _, o := range there {
		if o.kind == "table" || o.kind == "relation" {
			names[o.table] = true
		}
	}
	var have []string
	for _, t := range d.opts.Tables {
		if names[t] {
			have = append(have, t.String())
		}
	}
	if len(have) > 0 && len(have) < len(d.opts.Tables) {
		return false, fmt.Errorf("%s exist already and the other tables do not; hint: drop them", strings.Join(have, ", "))
	}
	return len(have) > 0, nil
}

// missing lists the entries of a phase that a shard does not have yet. Schemas and extensions that an operator made
// beforehand count as had in every phase.
func (d *Dump) missing(phase Phase, there map[objectID]object) []entry {
	have := map[string]bool{}
	for _, o := range there {
		have[o.key()] = true
	}
	var use []entry
	extensions := map[int]bool{}
	for _, e := range d.entries {
		if e.phase != phase || e.left != "" {
			continue
		}
		o, known := d.objects[objectID{e.class, e.oid}]
		known = known && e.oid != 0 && have[o.key()]
		switch {
		case known && o.repeatable:
			// a view's rule is replaced, schema public is only given its owner
		case known && e.class == classExtension:
			extensions[e.id] = true
			continue
		case known && (phase != PhaseTables || e.class == classNamespace):
			continue
		case strings.HasPrefix(e.text, "COMMENT ") && len(e.deps) > 0 && extensions[e.deps[0]]:
			continue // only an extension's owner may comment on it
		}
		use = append(use, e)
	}
	return use
}

// leftOut says which of the source's objects no phase restores; foreign keys, which are made apart, among them.
func (d *Dump) leftOut() map[objectID]bool {
	out := map[objectID]bool{}
	for _, e := range d.entries {
		if e.left != "" {
			out[objectID{e.class, e.oid}] = true
		}
	}
	return out
}
