package copier

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgreshard/pg"
)

// binaryStream is what COPY TO STDOUT (FORMAT binary) sends for rows of values; nil is NULL.
func binaryStream(rows [][][]byte) []byte {
	out := append([]byte(signature), make([]byte, 8)...)
	for _, row := range rows {
		out = binary.BigEndian.AppendUint16(out, uint16(len(row)))
		for _, v := range row {
			if v == nil {
				out = binary.BigEndian.AppendUint32(out, 0xffffffff)
				continue
			}
			out = append(binary.BigEndian.AppendUint32(out, uint32(len(v))), v...)
		}
	}
	return append(out, 0xff, 0xff)
}

var escaper = strings.NewReplacer("\\", `\\`, "\b", `\b`, "\f", `\f`, "\n", `\n`, "\r", `\r`, "\t", `\t`, "\v", `\v`)

func textStream(rows [][][]byte) []byte {
	var out []byte
	for _, row := range rows {
		for i, v := range row {
			if i > 0 {
				out = append(out, '\t')
			}
			if v == nil {
				out = append(out, `\N`...)
			} else {
				out = append(out, escaper.Replace(string(v))...)
			}
		}
		out = append(out, '\n')
	}
	return out
}

func TestFramerFindsTheSameRowsAndKeysHoweverTheStreamIsCut(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	const alphabet = "ab\\\t\n\r\b\f\vN.é "
	for range 500 {
		columns := 1 + random.IntN(6)
		rows := make([][][]byte, random.IntN(6))
		for i := range rows {
			for range columns {
				var v []byte
				if random.IntN(4) > 0 {
					v = make([]byte, random.IntN(20))
					for k := range v {
						v[k] = alphabet[random.IntN(len(alphabet))]
					}
				}
				rows[i] = append(rows[i], v)
			}
		}
		key := random.Perm(columns)[:random.IntN(columns+1)]
		for _, isBinary := range []bool{true, false} {
			stream := textStream(rows)
			if isBinary {
				stream = binaryStream(rows)
			}
			var got []string
			var whole []byte
			f := newFramer(&pg.Copy{Columns: make([]string, columns), Key: key, Binary: isBinary}, func(row []byte, k []pg.Datum) error {
				whole = append(whole, row...)
				got = append(got, datums(k))
				return nil
			})
			for left := stream; len(left) > 0; {
				n := 1 + random.IntN(len(left))
				if random.IntN(2) == 0 {
					n = min(n, 3)
				}
				if err := f.write(slices.Clone(left[:n])); err != nil {
					t.Fatal(err)
				}
				left = left[n:]
			}
			if err := f.finish(int64(len(rows))); err != nil {
				t.Fatalf("%q: %v", stream, err)
			}
			var want []string
			for _, row := range rows {
				k := make([]pg.Datum, len(key))
				for i, c := range key {
					k[i] = pg.Datum{Kind: pg.Null}
					if row[c] != nil {
						k[i] = pg.Datum{Kind: pg.Text, Bytes: row[c]}
						if isBinary {
							k[i].Kind = pg.Binary
						}
					}
				}
				want = append(want, datums(k))
			}
			if !slices.Equal(got, want) {
				t.Fatalf("keys of %q: %q, want %q", stream, got, want)
			}
			if isBinary {
				stream = stream[19 : len(stream)-2]
			}
			if string(whole) != string(stream) {
				t.Fatalf("rows are %q of %q", whole, stream)
			}
		}
	}
}

func datums(key []pg.Datum) string {
	var b strings.Builder
	for _, d := range key {
		if d.Kind != pg.Null && d.Bytes == nil {
			b.WriteString("nil bytes!")
		}
		fmt.Fprintf(&b, "%c%q ", d.Kind, d.Bytes)
	}
	return b.String()
}

func TestFramerRefusesWhatIsNoCopyStream(t *testing.T) {
	t.Parallel()
	ok := binaryStream([][][]byte{{[]byte("a"), nil}})
	for name, c := range map[string]struct {
		binary bool
		stream []byte
		rows   int64
	}{
		"a wrong signature":              {true, append([]byte("PGCOPX"), ok[6:]...), 1},
		"a header with flags":            {true, append(append([]byte(signature), 0, 1, 0, 0), ok[15:]...), 1},
		"too many columns":               {true, binaryStream([][][]byte{{nil, nil, nil}}), 1},
		"a negative length":              {true, append(slices.Clone(ok[:19]), 0, 2, 0xff, 0xff, 0xff, 0xfe), 1},
		"data after the end":             {true, append(slices.Clone(ok), 0, 2), 1},
		"no trailer":                     {true, ok[:len(ok)-2], 1},
		"an end inside a value":          {true, ok[:24], 1},
		"fewer rows than the server had": {true, ok, 2},
		"too few columns in text":        {false, []byte("a\n"), 1},
		"an unfinished line":             {false, []byte("a\tb"), 1},
		"an escape that is none":         {false, []byte("a\t\\q\n"), 1},
		"a value ending in an escape":    {false, []byte("a\tb\\\n"), 1},
	} {
		f := newFramer(&pg.Copy{Columns: []string{"a", "b"}, Key: []int{1}, Binary: c.binary}, func([]byte, []pg.Datum) error { return nil })
		err := f.write(c.stream)
		if err == nil {
			err = f.finish(c.rows)
		}
		if err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestFramerSkipsAHeaderExtension(t *testing.T) {
	t.Parallel()
	stream := binaryStream([][][]byte{{[]byte("a")}})
	extended := append(append([]byte(signature), 0, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3), stream[19:]...)
	f := newFramer(&pg.Copy{Columns: []string{"a"}, Binary: true}, func([]byte, []pg.Datum) error { return nil })
	if err := f.write(extended); err != nil {
		t.Fatal(err)
	}
	if err := f.finish(1); err != nil {
		t.Fatal(err)
	}
}

func FuzzFramerNeitherPanicsNorReadsBeyondItsInput(f *testing.F) {
	f.Add(binaryStream([][][]byte{{[]byte("a"), nil}}), true, 5)
	f.Add(textStream([][][]byte{{[]byte("a\t"), nil}}), false, 2)
	f.Fuzz(func(t *testing.T, stream []byte, isBinary bool, cut int) {
		run := func(pieces ...[]byte) (rows []string, failed bool) {
			fr := newFramer(&pg.Copy{Columns: []string{"a", "b"}, Key: []int{1, 0}, Binary: isBinary}, func(row []byte, key []pg.Datum) error {
				rows = append(rows, string(row)+datums(key))
				return nil
			})
			for _, p := range pieces {
				if err := fr.write(p); err != nil {
					return rows, true
				}
			}
			return rows, false
		}
		cut = min(max(cut, 0), len(stream))
		whole, failed := run(stream)
		parts, partsFailed := run(stream[:cut], stream[cut:])
		if failed != partsFailed || !slices.Equal(whole, parts) {
			t.Fatalf("whole %q %v, in two parts %q %v", whole, failed, parts, partsFailed)
		}
	})
}

func BenchmarkFramer(b *testing.B) {
	row := make([][]byte, 12)
	for i := range row {
		row[i] = []byte("value of twenty bytes")
	}
	for _, isBinary := range []bool{true, false} {
		name, stream := "text", textStream([][][]byte{row})
		if isBinary {
			name, stream = "binary", binaryStream([][][]byte{row})
			stream = stream[19 : len(stream)-2]
		}
		b.Run(name, func(b *testing.B) {
			f := newFramer(&pg.Copy{Columns: make([]string, 12), Key: []int{3, 0}, Binary: isBinary}, func([]byte, []pg.Datum) error { return nil })
			f.begun = true
			b.ReportAllocs()
			b.SetBytes(int64(len(stream)))
			for b.Loop() {
				if err := f.write(stream); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
