package sink

import (
	"context"
	"errors"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// Router names the shard of a row. Copy, stream, verify, route and checks all ask it, so that they cannot disagree.
type Router struct {
	Lookups *lookup.Cache
}

// Place names the shard a key belongs to. Where the table has a lookup the key is translated first, and where only a
// server can hash the key it is hashed: from the cache, or by ask. The error is a *PlaceError where the key has no shard,
// and the asker's own otherwise.
func (r Router) Place(ctx context.Context, t *Table, key []pg.Datum, ask lookup.Asker) (layout.Shard, error) {
	if !t.asks(key) {
		return placed(t, key, key)
	}
	var text []byte
	if key[0].Kind != pg.Null {
		var err error
		if text, err = t.Rule.KeyText([]byte{}, key[0]); err != nil { // nil would be NULL, and '' is not
			return 0, &PlaceError{Table: t.Source, Err: err}
		}
	}
	value, err := r.Lookups.Translate(ctx, t.Query, text, ask)
	return r.translated(t, key, value, err)
}

// PlaceMany places many keys of a table with one round trip for all that are not cached.
func (r Router) PlaceMany(ctx context.Context, t *Table, keys [][]pg.Datum, ask lookup.Asker, out []layout.Shard) error {
	if t.Query == nil {
		for i, key := range keys {
			var err error
			if out[i], err = placed(t, key, key); err != nil {
				return err
			}
		}
		return nil
	}
	texts := make([][]byte, len(keys))
	for i, key := range keys {
		if key[0].Kind == pg.Null {
			continue
		}
		text, err := t.Rule.KeyText([]byte{}, key[0])
		if err != nil {
			return &PlaceError{Table: t.Source, Err: err}
		}
		texts[i] = text
	}
	values, err := r.Lookups.TranslateMany(ctx, t.Query, texts, ask)
	var missing *lookup.MissingError
	if err != nil && !errors.As(err, &missing) {
		return err
	}
	for i, key := range keys {
		switch {
		case !t.asks(key):
			out[i], err = placed(t, key, key)
		case values[i] == nil:
			out[i], err = r.translated(t, key, nil, missing)
		default:
			out[i], err = r.translated(t, key, values[i], nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// translated places a key by its translation, or by what the rule says of keys that have none.
func (r Router) translated(t *Table, key []pg.Datum, value []byte, err error) (layout.Shard, error) {
	var missing *lookup.MissingError
	if err == nil {
		return placed(t, key, []pg.Datum{{Kind: pg.Text, Bytes: value}})
	}
	if !errors.As(err, &missing) {
		return 0, err
	}
	if shard, ok := t.Rule.Default(); ok && t.Rule.OnMissing == layout.MissingDefault {
		return shard, nil
	}
	if t.Rule.OnMissing == layout.MissingIdentity {
		return placed(t, key, key)
	}
	return 0, &PlaceError{Table: t.Source, Key: keyText(key, []int{0}), Err: missing}
}

func placed(t *Table, key, translated []pg.Datum) (layout.Shard, error) {
	shard, err := t.Rule.Place(translated)
	if err != nil {
		return 0, &PlaceError{Table: t.Source, Key: keyText(key, all(len(key))), Err: err}
	}
	return shard, nil
}
