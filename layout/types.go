package layout

import "strings"

// keyType is a type whose values this package reads (text and binary wire form), hashes as PostgreSQL does, and
// compares. Zero is none.
type keyType uint8

const (
	typeNone   keyType = iota
	typeServer         // of another type: what is read is the hash that a server has computed
	typeBool
	typeChar // "char"
	typeInt2
	typeInt4
	typeInt8
	typeOID
	typeDate
	typeTime
	typeTimestamp
	typeTimestampTZ
	typeLSN
	typeTimeTZ
	typeInterval
	typeFloat4
	typeFloat8
	typeNumeric
	typeText
	typeVarchar
	typeName
	typeBPChar
	typeBytea
	typeUUID
	typeMAC
	typeMAC8
	typeInet
	typeCIDR
)

// class says how a value of a type is held: see value.
type class uint8

const (
	classInt class = iota
	classTimeTZ
	classInterval
	classFloat
	classNumeric
	classBytes
	classNet
)

func (t keyType) class() class {
	switch t {
	case typeTimeTZ:
		return classTimeTZ
	case typeInterval:
		return classInterval
	case typeFloat4, typeFloat8:
		return classFloat
	case typeNumeric:
		return classNumeric
	case typeInet, typeCIDR:
		return classNet
	}
	if t >= typeText {
		return classBytes
	}
	return classInt
}

// family is what types share that hash and compare alike: PostgreSQL's hash operator family.
func (t keyType) family() keyType {
	switch t {
	case typeInt2, typeInt4:
		return typeInt8
	case typeFloat4:
		return typeFloat8
	case typeVarchar, typeName:
		return typeText
	case typeCIDR:
		return typeInet
	}
	return t
}

// collatable says that PostgreSQL's hash of the type depends on a collation.
func (t keyType) collatable() bool { return t.family() == typeText || t == typeBPChar }

// typeOfOID knows built-in types by their OID, which is the same on every server.
func typeOfOID(oid uint32) keyType {
	switch oid {
	case 16:
		return typeBool
	case 17:
		return typeBytea
	case 18:
		return typeChar
	case 19:
		return typeName
	case 20:
		return typeInt8
	case 21:
		return typeInt2
	case 23:
		return typeInt4
	case 25:
		return typeText
	case 26:
		return typeOID
	case 650:
		return typeCIDR
	case 700:
		return typeFloat4
	case 701:
		return typeFloat8
	case 774:
		return typeMAC8
	case 829:
		return typeMAC
	case 869:
		return typeInet
	case 1042:
		return typeBPChar
	case 1043:
		return typeVarchar
	case 1082:
		return typeDate
	case 1083:
		return typeTime
	case 1114:
		return typeTimestamp
	case 1184:
		return typeTimestampTZ
	case 1186:
		return typeInterval
	case 1266:
		return typeTimeTZ
	case 1700:
		return typeNumeric
	case 2950:
		return typeUUID
	case 3220:
		return typeLSN
	}
	return typeNone
}

// names holds PostgreSQL's name of each type, as format_type prints it.
var names = [...]string{
	typeNone: "unknown", typeServer: "hash of a server", typeBool: "boolean", typeChar: `"char"`, typeInt2: "smallint", typeInt4: "integer",
	typeInt8: "bigint", typeOID: "oid", typeDate: "date", typeTime: "time without time zone",
	typeTimestamp: "timestamp without time zone", typeTimestampTZ: "timestamp with time zone", typeLSN: "pg_lsn",
	typeTimeTZ: "time with time zone", typeInterval: "interval", typeFloat4: "real", typeFloat8: "double precision",
	typeNumeric: "numeric", typeText: "text", typeVarchar: "character varying", typeName: "name",
	typeBPChar: "character", typeBytea: "bytea", typeUUID: "uuid", typeMAC: "macaddr", typeMAC8: "macaddr8",
	typeInet: "inet", typeCIDR: "cidr",
}

func (t keyType) String() string { return names[t] }

// aliases holds the other names SQL, PostgreSQL and PgDog have for a type.
var aliases = map[string]keyType{
	"bool": typeBool, "int2": typeInt2, "smallserial": typeInt2, "serial2": typeInt2, "int": typeInt4, "int4": typeInt4,
	"serial": typeInt4, "serial4": typeInt4, "int8": typeInt8, "bigserial": typeInt8, "serial8": typeInt8,
	"time": typeTime, "timetz": typeTimeTZ, "timestamp": typeTimestamp, "timestamptz": typeTimestampTZ,
	"float4": typeFloat4, "float8": typeFloat8, "float": typeFloat8, "decimal": typeNumeric, "dec": typeNumeric,
	"varchar": typeVarchar, "char varying": typeVarchar, "char": typeBPChar, "bpchar": typeBPChar,
	"national character": typeBPChar, "nchar": typeBPChar,
}

// parseType reads a type's name in any of its spellings, with or without a modifier such as (8); ok is false for a type
// this package cannot place by.
func parseType(name string) (t keyType, ok bool) {
	plain := unmodified(strings.ToLower(name))
	plain = strings.TrimPrefix(plain, "pg_catalog.")
	if t, ok = aliases[plain]; ok {
		return t, true
	}
	for t, n := range names {
		if n == plain && keyType(t) > typeServer {
			return keyType(t), true
		}
	}
	return typeNone, false
}

// unmodified takes the modifier, which stands in the middle of timestamp(3) with time zone, and needless space out of a
// type's name.
func unmodified(name string) string {
	if before, rest, ok := strings.Cut(name, "("); ok {
		if _, after, closed := strings.Cut(rest, ")"); closed {
			name = before + " " + after
		}
	}
	return strings.Join(strings.Fields(name), " ")
}
