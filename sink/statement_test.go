package sink

import (
	"math/rand/v2"
	"testing"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

// The server reads an array literal back as the very values.
func TestAnArrayLiteralIsReadBackAsItsValues(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	values := []string{"", " ", "NULL", "null", `\`, `"`, `\"`, "{", "}", "{}", ",", "a,b", "\n", "\t", "'", "-", ".", "e", "1e5", "a b ", " x", "\u00a0", "é", "🐘", "\x01"}
	alphabet := []rune("ab,\"\\{} \n\t'NUL0-.é")
	for range 2000 {
		b := make([]rune, r.IntN(6))
		for i := range b {
			b[i] = alphabet[r.IntN(len(alphabet))]
		}
		values = append(values, string(b))
	}
	rows := make([]pg.Row, len(values)+1)
	for i, v := range values {
		rows[i] = pg.Row{text(v)}
	}
	rows[len(values)] = pg.Row{{Kind: pg.Null}}
	conn := pgtest.Shared(t).Database(t).Conn(t)
	result := conn.PgConn().ExecParams(t.Context(), "select v from unnest($1) with ordinality u(v, n) order by n", [][]byte{arrayLiteral(rows, 0)}, []uint32{typeTextArray}, nil, nil).Read()
	if result.Err != nil || len(result.Rows) != len(rows) {
		t.Fatalf("%d rows, %v", len(result.Rows), result.Err)
	}
	for i, v := range values {
		if got := result.Rows[i][0]; got == nil || string(got) != v {
			t.Errorf("%q came back as %q", v, got)
		}
	}
	if result.Rows[len(values)][0] != nil {
		t.Error("NULL came back as a value")
	}
}

func TestTheSchemaOfATypesName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"integer": "", "character varying(5)": "", "numeric(10,2)": "", "public.citext": "public", `"My.Schema"."a.b"(3)`: `"My.Schema"`,
		`"a""b.c".d`: `"a""b.c"`, "public.geometry(Point,4326)": "public", "timestamp(3) with time zone": "", `"char"`: "",
	} {
		if got := schemaOf(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestHowAColumnTravels(t *testing.T) {
	t.Parallel()
	user := func(kind byte) pg.Column {
		return pg.Column{TypeOID: 20000, BaseOID: 20000, ArrayOID: 20001, Type: "public.x", TypeType: kind}
	}
	for i, c := range []struct {
		column  pg.Column
		array   bool
		equals  string
		because string
	}{
		{int4, true, "=", "a plain type"},
		{pg.Column{TypeOID: 1007, BaseOID: 1007, ElemOID: 23, TypeType: 'b'}, false, "=", "an array"},
		{pg.Column{TypeOID: 603, BaseOID: 603, ArrayOID: 1020, TypeType: 'b'}, false, "=", "box is separated by semicolons"},
		{user('e'), true, "=", "an enum"},
		{user('r'), true, "=", "a range"},
		{user('c'), false, "=", "unnest takes a composite apart"},
		{user('b'), false, "operator(public.=)", "an extension's type"},
		{pg.Column{TypeOID: 20000, BaseOID: 23, ArrayOID: 20001, Type: "public.d", TypeType: 'd'}, true, "=", "a domain over a plain type"},
		{pg.Column{TypeOID: 20000, BaseOID: 19999, ArrayOID: 20001, Type: "public.d", TypeType: 'd'}, false, "=", "a domain over who knows what"},
	} {
		if asArray(c.column) != c.array || operator(c.column) != c.equals {
			t.Errorf("%s (%d): as array %t, equals %s", c.because, i, asArray(c.column), operator(c.column))
		}
	}
}
