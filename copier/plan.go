package copier

import (
	"fmt"
	"slices"

	"pgreshard/pg"
)

// Format is how rows travel, as the configuration names it.
type Format string

// The formats of `[copy] format`. Auto is binary where both sides' types allow it, else text.
const (
	Auto   Format = "auto"
	Binary Format = "binary"
	Text   Format = "text"
)

// Plan decides how the rows of a source table get into a destination table: columns matched by name, without
// generated ones, in the source's order. key names the sharding key's columns (none for an omnisharded table);
// binaryKey says that the rule can place a key by its binary form.
func Plan(from, into *pg.Table, key []string, binaryKey bool, format Format) (*pg.Copy, error) {
	c := &pg.Copy{From: from, Into: into, Binary: format != Text}
	why := ""
	for _, column := range from.Columns {
		there, ok := into.Column(column.Name)
		if !ok {
			return nil, fmt.Errorf("column %s of %s is missing on the destination; hint: its table was changed after the schema was copied", column.SQL(), from.Name)
		}
		target := into.Columns[there]
		if (column.Generated != 0) != (target.Generated != 0) {
			return nil, fmt.Errorf("column %s of %s is generated on one side only; hint: make it the same on both", column.SQL(), from.Name)
		}
		if column.Generated != 0 {
			continue
		}
		c.Columns = append(c.Columns, column.Name)
		if c.Binary && !sameBinary(column, target) {
			c.Binary, why = false, fmt.Sprintf("column %s is %s", column.SQL(), column.Type)
		}
	}
	for _, name := range key {
		i := slices.Index(c.Columns, name)
		if i < 0 {
			return nil, fmt.Errorf("key column %s of %s is generated or missing", pg.Column{Name: name}.SQL(), from.Name)
		}
		c.Key = append(c.Key, i)
	}
	if c.Binary && len(key) > 0 && !binaryKey {
		c.Binary, why = false, "the rule reads its key as text"
	}
	if format == Binary && !c.Binary {
		return nil, fmt.Errorf(`%s cannot be copied in binary: %s; hint: [copy] format = "auto"`, from.Name, why)
	}
	return c, nil
}

const (
	typeInt2Vector = 22
	typeOIDVector  = 30
)

// sameBinary says that a value's bytes mean the same on both sides. The vectors look like arrays, but no server takes
// an empty one back.
func sameBinary(a, b pg.Column) bool {
	if a.TypeOID != b.TypeOID || a.TypeOID == typeInt2Vector || a.TypeOID == typeOIDVector {
		return false
	}
	return binaryTypes[a.TypeOID] || a.ElemOID != 0 && a.ElemOID == b.ElemOID && binaryTypes[a.ElemOID]
}

// binaryTypes are the built-in types whose binary form holds no OID and is read back as it was sent, by OID. Left out
// on purpose: reg* (OIDs of objects, which differ between databases), xml (its receiver looks at the encoding declared)
// and tsquery (no server from 14 to 18 takes an empty one back).
var binaryTypes = map[uint32]bool{
	16: true, 17: true, 18: true, 19: true, // bool bytea "char" name
	20: true, 21: true, 23: true, 25: true, 26: true, 27: true, 28: true, // int8 int2 int4 text oid tid xid
	114: true, 3802: true, 4072: true, // json jsonb jsonpath
	600: true, 601: true, 602: true, 603: true, 604: true, 628: true, 718: true, // point lseg path box polygon line circle
	700: true, 701: true, 790: true, 1700: true, // float4 float8 money numeric
	650: true, 869: true, 829: true, 774: true, // cidr inet macaddr macaddr8
	1042: true, 1043: true, 1560: true, 1562: true, // bpchar varchar bit varbit
	1082: true, 1083: true, 1114: true, 1184: true, 1186: true, 1266: true, // date time timestamp timestamptz interval timetz
	2950: true, 3220: true, 3614: true, // uuid pg_lsn tsvector
	3904: true, 3906: true, 3908: true, 3910: true, 3912: true, 3926: true, // int4 num ts tstz date int8 range
	4451: true, 4532: true, 4533: true, 4534: true, 4535: true, 4536: true, // their multiranges
	5069: true, 2970: true, 5038: true, // xid8 txid_snapshot pg_snapshot
}
