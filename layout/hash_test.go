package layout

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"pgreshard/pg"
)

// partition_hash.tsv was computed by PostgreSQL: type, key, 64-bit hash ("-": not given), remainder modulo 4 and 7.
func TestHashPlacementIsPostgres(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/partition_hash.tsv")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")[1:]
	if len(lines) < 400 {
		t.Fatalf("only %d rows of figures", len(lines))
	}
	for _, line := range lines {
		f := strings.Split(line, "\t")
		types := strings.Split(strings.Trim(f[0], "()"), ",")
		if strings.HasPrefix(f[0], "char") || strings.HasPrefix(f[0], "varchar") {
			types = []string{f[0]}
		}
		values := []string{f[1]}
		if len(types) > 1 {
			values = strings.Split(f[1], "|")
		}
		texts, binaries := make([]pg.Datum, len(types)), make([]pg.Datum, len(types))
		for i, v := range values {
			if v == `\N` {
				texts[i], binaries[i] = null(), null()
				continue
			}
			v = copyText.Replace(v)
			texts[i], binaries[i] = text(v), asBinary(t, types[i], v)
		}
		for modulus, want := range map[int]string{4: f[3], 7: f[4]} {
			r := hashRule(t, modulus, types...)
			for _, key := range [][]pg.Datum{texts, binaries} {
				if s := place(t, r, key...); strconv.Itoa(int(s)) != want {
					t.Errorf("%s %q modulo %d: %v, PostgreSQL says %s", f[0], f[1], modulus, s, want)
				}
			}
		}
		if f[1] == `\N` && f[2] != "0" {
			t.Errorf("PostgreSQL's hash of NULL is %s", f[2])
		} else if f[1] != `\N` && f[2] != "-" {
			kt, _ := parseType(types[0])
			v, err := kt.readText(texts[0].Bytes, nil)
			if got := fmt.Sprint(combine(0, kt.hash(v))); err != nil || got != f[2] {
				t.Errorf("%s %q: hash %s (%v), PostgreSQL says %s", f[0], f[1], got, err, f[2])
			}
		}
	}
}

// copyText undoes COPY's escapes.
var copyText = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\t`, "\t")

// asBinary is the binary form where it is easy to make here, else the text.
func asBinary(t *testing.T, typeName, v string) pg.Datum {
	kt, ok := parseType(typeName)
	if !ok {
		t.Fatalf("type %s is not known", typeName)
	}
	read, err := kt.readText([]byte(v), nil)
	if err != nil {
		t.Fatalf("%s %q: %v", typeName, v, err)
	}
	switch kt {
	case typeInt8, typeTimestamp, typeTimestampTZ:
		return binaryOf(binary.BigEndian.AppendUint64(nil, uint64(read.n)))
	case typeInt4, typeDate:
		return binaryOf(binary.BigEndian.AppendUint32(nil, uint32(read.n)))
	case typeInt2:
		return binaryOf(binary.BigEndian.AppendUint16(nil, uint16(read.n)))
	case typeBool:
		return binaryOf([]byte{byte(read.n)})
	case typeUUID:
		b, err := hex.DecodeString(strings.ReplaceAll(v, "-", ""))
		if err != nil {
			t.Fatal(err)
		}
		return binaryOf(b)
	case typeBytea:
		return binaryOf(read.b)
	case typeText, typeVarchar:
		return binaryOf([]byte(v))
	case typeBPChar:
		return binaryOf([]byte(fmt.Sprintf("%-8s", v)))
	}
	return text(v)
}

func TestSHA1IsTheLastFourBytes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		typeName string
		key      pg.Datum
		want     uint32
	}{
		{"text", text("1"), 961816747},
		{"bigint", text("42"), 127381078},
		{"bigint", binaryOf(binary.BigEndian.AppendUint64(nil, 42)), 127381078},
		{"varchar", text("tenant-1"), 3818526589},
		{"char(20)", text("tenant-1            "), 3818526589},
	} {
		const shards = 1_000_003
		r := ruleOf(t, Spec{Shards: shards, Tables: []ShardedTable{{Column: "k", Hasher: HasherSHA1}}}, tableOf("public.t", "k "+c.typeName))
		if s := place(t, r, c.key); uint32(s) != c.want%shards {
			t.Errorf("%s %q: %v, want %d", c.typeName, c.key.Bytes, s, c.want%shards)
		}
	}
}
