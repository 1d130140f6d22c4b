package layout

import (
	"bytes"
	"encoding/json"
	"testing"

	"pgreshard/pg"
)

// FuzzRead feeds any bytes to the readers of both wire forms: no panic, and a value that was read hashes, compares with
// itself as equal and, where it has a text form, reads back from it as the same value.
func FuzzRead(f *testing.F) {
	for typeName, g := range keysOf {
		t, _ := parseType(typeName)
		for _, k := range g.awkward {
			f.Add(uint8(t), false, []byte(k))
		}
	}
	for _, b := range [][]byte{make([]byte, 4), make([]byte, 8), make([]byte, 16), {0, 1, 0, 0, 0, 0, 0, 0, 0, 7}, {2, 24, 0, 4, 1, 2, 3, 4}} {
		for t := typeNone; t <= typeCIDR; t++ {
			f.Add(uint8(t), true, b)
		}
	}
	f.Fuzz(func(t *testing.T, typeNumber uint8, isBinary bool, data []byte) {
		kt := keyType(typeNumber % (uint8(typeCIDR) + 1))
		d := pg.Datum{Kind: pg.Text, Bytes: data}
		if isBinary {
			d.Kind = pg.Binary
		}
		var scratch [scratchSize]byte
		v, err := kt.read(d, scratch[:0])
		if err != nil {
			return
		}
		if unscratched, err := kt.read(d, nil); err != nil || kt.compare(v, unscratched) != 0 || kt.hash(v) != kt.hash(unscratched) {
			t.Fatalf("%v %q: two readings differ", kt, data)
		}
		if !kt.hasText() {
			return
		}
		printed := kt.appendText(nil, v)
		again, err := kt.readText(printed, nil)
		if err != nil || kt.compare(v, again) != 0 || kt.hash(v) != kt.hash(again) {
			t.Fatalf("%v %q prints as %q, which reads otherwise (%v)", kt, data, printed, err)
		}
	})
}

// FuzzCompile reads any layout record: no panic, and what compiles places without panic and records itself unchanged.
func FuzzCompile(f *testing.F) {
	spec, tables := good()
	tables = append(tables, tableOf("public.many", "id uuid", "day date", "amount numeric", "region char(8)"))
	seed, _ := json.Marshal(spec)
	f.Add(seed, []byte("x"))
	f.Add([]byte(`{"shards":2,"sharded_tables":[{"name":"many","columns":["id","day"]},{"column":"region","placement":"slots","slots":7},{"column":"tenant_id","hasher":"sha1"}],"sharded_schemas":[{"all":true}]}`), []byte("1"))
	f.Fuzz(func(t *testing.T, record, key []byte) {
		var spec Spec
		if json.Unmarshal(record, &spec) != nil || spec.Shards > 1000 {
			return
		}
		for _, s := range spec.Tables {
			if s.Slots > 1<<14 {
				return
			}
		}
		l, err := Compile(spec, tables)
		if err != nil {
			return
		}
		for _, r := range l.Rules() {
			for _, kind := range []pg.Kind{pg.Text, pg.Binary, pg.Null} {
				d := make([]pg.Datum, max(1, len(r.Columns)))
				for i := range d {
					d[i] = pg.Datum{Kind: kind, Bytes: key}
				}
				if s, err := r.Place(d); err == nil && (s < 0 || int(s) >= l.Shards()) {
					t.Fatalf("%s places on %v of %d", r.Describe(), s, l.Shards())
				}
			}
		}
		kept, err := json.Marshal(l.Spec())
		if err != nil {
			t.Fatal(err)
		}
		var back Spec
		if err := json.Unmarshal(kept, &back); err != nil {
			t.Fatal(err)
		}
		again, err := Compile(back, tables)
		if err != nil {
			t.Fatalf("%s does not compile again: %v", kept, err)
		}
		if twice, _ := json.Marshal(again.Spec()); !bytes.Equal(kept, twice) {
			t.Fatalf("%s is kept again as %s", kept, twice)
		}
	})
}
