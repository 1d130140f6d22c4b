package layout

import (
	"crypto/sha1"
	"encoding/binary"
	"fmt"

	"pgreshard/pg"
)

// Rule places the rows of one table.
type Rule struct {
	Table        pg.Name
	ID           int      // dense index in Layout.Rules
	Omni         bool     // every shard holds the whole table
	Columns      []string // the key columns, in the order Place takes them; none where the whole table has one place
	Lookup       string   // lookup_query, empty where the key is placed as it is
	LookupResult string   // ResultValue or ResultShard, where Lookup is set
	OnMissing    string   // MissingStop, MissingDefault or MissingIdentity, where Lookup is set
	HashQuery    string   // hashes the key $1 where only a server can, and every server alike; empty elsewhere

	method  method
	shards  uint64
	whole   Shard     // the table's only shard, under methodWhole
	types   []keyType // of what Place is given, column by column
	source  keyType   // of the column a lookup translates, typeNone where its binary form cannot be read
	hashed  string    // name of the type HashQuery takes
	placed  Placement // from hash to shard, under methodHash and methodSHA1
	mapping *mapping
}

// method is how a rule comes to a shard.
type method uint8

const (
	methodWhole   method = iota // one shard for the whole table
	methodOmni                  // every shard
	methodHash                  // PostgreSQL's partition hash
	methodSHA1                  // the last four bytes of SHA-1 over the key's text
	methodMapping               // list, range, default
	methodNumber                // the lookup answers with the shard's number
)

// Place names the shard of a row by its key: one Datum for each of Columns, or, where Lookup is set, the translated key
// as text, or, where HashQuery is set, its answer as text, of which NULL has none. Null, Text and Binary datums of one value name the same shard. It does not allocate for integers, text and
// uuid. The error is always a *NoShardError.
func (r *Rule) Place(key []pg.Datum) (Shard, error) {
	if r.method == methodWhole {
		return r.whole, nil
	}
	if r.method == methodOmni {
		return 0, r.noShard(key, reasonOmni)
	}
	if len(key) != len(r.types) {
		return 0, r.noShard(key, reasonColumns)
	}
	switch r.method {
	case methodHash:
		return r.placeByHash(key)
	case methodSHA1:
		return r.placeBySHA1(key)
	case methodMapping:
		return r.placeByMapping(key)
	default:
		return r.placeByNumber(key)
	}
}

// Default is the shard of the rule's default mapping, which on_missing = "default" asks for.
func (r *Rule) Default() (s Shard, ok bool) {
	if r.mapping == nil || r.mapping.rest == nil {
		return 0, false
	}
	return *r.mapping.rest, true
}

// BinaryKey says that the binary form of every key column will do: for Place, or, where a server is asked, for KeyText.
func (r *Rule) BinaryKey() bool {
	if r.Lookup != "" || r.HashQuery != "" {
		return r.source.hasText()
	}
	return true
}

// Hash is the 64-bit hash that Placement brings down to a shard: PostgreSQL's partition hash of the key, or what hasher
// says. A mapping's key has one too, by which it could be placed. ok is false where a rule places without one.
func (r *Rule) Hash(key []pg.Datum) (hash uint64, ok bool) {
	var err error
	switch {
	case len(key) != len(r.types) || r.method == methodNumber:
		return 0, false
	case r.method == methodSHA1:
		hash, err = r.hashBySHA1(key)
	case r.method == methodHash, r.method == methodMapping:
		hash, err = r.hashByPostgres(key)
	default:
		return 0, false
	}
	return hash, err == nil
}

// Hashes says by what function and of what kinds of types the rule hashes: two rules that say the same hash a key alike.
func (r *Rule) Hashes() string {
	families := make([]keyType, len(r.types))
	for i, t := range r.types {
		families[i] = t.family()
	}
	return fmt.Sprint(r.method, families, r.HashQuery)
}

// Compare orders two keys as their types do, column by column: text by its bytes, NULL last. A value that cannot be read
// comes behind those that can.
func (r *Rule) Compare(a, b []pg.Datum) int {
	for i, t := range r.types {
		v, inA := t.readable(a[i])
		w, inB := t.readable(b[i])
		switch {
		case inA && inB:
			if c := t.compare(v, w); c != 0 {
				return c
			}
		case inA:
			return -1
		case inB:
			return 1
		}
	}
	return 0
}

// Placement is how the rule brings a key's hash down to a shard; nil where it places otherwise.
func (r *Rule) Placement() Placement { return r.placed }

func (r *Rule) placeByHash(key []pg.Datum) (Shard, error) {
	hash, err := r.hashByPostgres(key)
	if err != nil {
		return 0, err
	}
	return r.placed.Shard(hash), nil
}

func (r *Rule) hashByPostgres(key []pg.Datum) (uint64, error) {
	var scratch [scratchSize]byte
	var row uint64
	for i, d := range key {
		if d.Kind == pg.Null {
			continue
		}
		v, err := r.types[i].read(d, scratch[:0])
		if err != nil {
			return 0, r.unreadable(key, i, err)
		}
		row = combine(row, r.types[i].hash(v))
	}
	return row, nil
}

func (r *Rule) placeBySHA1(key []pg.Datum) (Shard, error) {
	hash, err := r.hashBySHA1(key)
	if err != nil {
		return 0, err
	}
	return r.placed.Shard(hash), nil
}

func (r *Rule) hashBySHA1(key []pg.Datum) (uint64, error) {
	if key[0].Kind == pg.Null {
		return 0, r.noShard(key, reasonNullSHA1)
	}
	var scratch, text [scratchSize]byte
	v, err := r.types[0].read(key[0], scratch[:0])
	if err != nil {
		return 0, r.unreadable(key, 0, err)
	}
	sum := sha1.Sum(r.types[0].appendText(text[:0], v))
	return uint64(binary.BigEndian.Uint32(sum[16:])), nil
}

func (r *Rule) placeByMapping(key []pg.Datum) (Shard, error) {
	if key[0].Kind == pg.Null { // in no list, in no range
		if s, ok := r.Default(); ok {
			return s, nil
		}
		return 0, r.noShard(key, reasonUnmapped)
	}
	var scratch [scratchSize]byte
	v, err := r.types[0].read(key[0], scratch[:0])
	if err != nil {
		return 0, r.unreadable(key, 0, err)
	}
	if s, ok := r.mapping.find(v); ok {
		return s, nil
	}
	return 0, r.noShard(key, reasonUnmapped)
}

func (r *Rule) placeByNumber(key []pg.Datum) (Shard, error) {
	if key[0].Kind == pg.Text {
		if s, err := ParseShard(key[0].Bytes, int(r.shards)); err == nil {
			return s, nil
		}
	}
	return 0, r.noShard(key, reasonNumber)
}
