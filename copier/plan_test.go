package copier

import (
	"slices"
	"strings"
	"testing"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

func table(columns ...pg.Column) *pg.Table {
	return &pg.Table{Name: pg.Name{Schema: "public", Table: "t"}, Columns: columns}
}

func column(name string, oid uint32) pg.Column {
	return pg.Column{Name: name, TypeOID: oid, Type: "type"}
}

func TestPlanChoosesTheFormatByTheTypesOfBothSides(t *testing.T) {
	t.Parallel()
	generated := column("g", 23)
	generated.Generated = 's'
	ints, enums := pg.Column{Name: "a", TypeOID: 1007, ElemOID: 23}, pg.Column{Name: "a", TypeOID: 16400, ElemOID: 16399}
	regclasses := pg.Column{Name: "a", TypeOID: 2210, ElemOID: 2205}
	id := column("id", 20)
	for _, c := range []struct {
		name       string
		from, into *pg.Table
		format     Format
		binaryKey  bool
		binary     bool
		err        string
	}{
		{"the same built-in types are binary", table(id, ints), table(ints, id), Auto, true, true, ""},
		{"text where it was asked for", table(id), table(id), Text, true, false, ""},
		{"text where a type differs", table(id, column("v", 25)), table(id, column("v", 1043)), Auto, true, false, ""},
		{"text for a user's type, whatever its OIDs", table(id, column("v", 16400)), table(id, column("v", 16400)), Auto, true, false, ""},
		{"text for an array of a user's type", table(id, enums), table(id, enums), Auto, true, false, ""},
		{"text for OIDs of objects", table(id, column("v", 2205)), table(id, column("v", 2205)), Auto, true, false, ""},
		{"text for arrays of them", table(id, regclasses), table(id, regclasses), Auto, true, false, ""},
		{"text where the rule reads its key as text", table(id), table(id), Auto, false, false, ""},
		{"binary asked for where it cannot be", table(id, column("v", 16400)), table(id, column("v", 16400)), Binary, true, false, `cannot be copied in binary: column "v"`},
		{"generated columns are left out", table(id, generated), table(generated, id), Auto, true, true, ""},
		{"generated on one side only", table(id, generated), table(id, column("g", 23)), Auto, true, false, "generated on one side only"},
		{"missing on the destination", table(id, column("v", 25)), table(id), Auto, true, false, `column "v" of public.t is missing`},
		{"the key is missing", table(column("v", 25)), table(column("v", 25)), Auto, true, false, `key column "id"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			plan, err := Plan(c.from, c.into, []string{"id"}, c.binaryKey, c.format)
			switch {
			case c.err != "":
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v, want %q", err, c.err)
				}
			case err != nil:
				t.Fatal(err)
			case plan.Binary != c.binary || !slices.Equal(plan.Key, []int{slices.Index(plan.Columns, "id")}) || slices.Contains(plan.Columns, "g"):
				t.Fatalf("%+v", plan)
			}
		})
	}
}

// A type is in the table of binary types only if the server says that it is a built-in base, range or multirange type
// with both binary functions.
func TestBinaryTypesAreBuiltInAndCanBeSentAndReceived(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	var oids []uint32
	for oid := range binaryTypes {
		oids = append(oids, oid)
	}
	for _, row := range db.Query(t, `select u, typname, typtype, typsend::oid, typreceive::oid, typcategory from unnest($1::oid[]) u left join pg_type t on t.oid = u
		where t.oid is null or typtype not in ('b', 'r', 'm') or typsend = 0 or typreceive = 0 or typcategory in ('A', 'P')`, oids) {
		t.Errorf("%v has no place among the binary types", row)
	}
}

func TestSplitCoversEveryBlockOnceAndStaysTheSameAsATableGrows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		pages int64
		size  uint32
		want  int
	}{
		{"an empty table is one chunk", 0, 1024, 1},
		{"one block", 1, 1024, 1},
		{"exactly full chunks", 2048, 1024, 2},
		{"a last chunk that is small", 2049, 1024, 3},
		{"a size that was never set", 3, 0, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			chunks := Split(&pg.Copy{From: &pg.Table{Pages: c.pages}}, c.size)
			if len(chunks) != c.want || chunks[0].From != 0 || chunks[len(chunks)-1].To != pg.ToTheEnd {
				t.Fatalf("%d chunks, first from %d, last to %d", len(chunks), chunks[0].From, chunks[len(chunks)-1].To)
			}
			grown := Split(&pg.Copy{From: &pg.Table{Pages: c.pages + 5000}}, c.size)
			for i, chunk := range chunks {
				if i > 0 && chunk.From != chunks[i-1].To || chunk.Number != i || grown[i].From != chunk.From {
					t.Errorf("chunk %d is %+v", i, chunk)
				}
			}
		})
	}
}

func TestChunksAreOfAUsefulSize(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		bytes   int64
		pages   int64
		workers int
		want    int
	}{
		{"a small table is one chunk", 1 << 20, 128, 4, 1},
		{"a middling one is cut to the smallest size", 80 << 20, 10240, 8, 10},
		{"a large one gives each worker several", 640 << 20, 81920, 4, 16},
		{"a huge one is cut to the largest size", 64 << 30, 8 << 20, 4, 1024},
		{"TOAST counts", 640 << 20, 1024, 4, 16},
		{"no more chunks than blocks", 640 << 20, 2, 4, 2},
		{"no workers", 1 << 30, 131072, 0, 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			table := &pg.Table{Bytes: c.bytes, Pages: c.pages}
			if n := len(Split(&pg.Copy{From: table}, ChunkPages(table, c.workers))); n != c.want {
				t.Errorf("%d chunks, want %d", n, c.want)
			}
		})
	}
}
