package replicator

import (
	"encoding/binary"

	"pgreshard/pg"
)

// Messages as a server writes them, for tests that need what no server sends.

var be = binary.BigEndian

func beginMessage(commit pg.LSN, xid uint32) []byte {
	m := be.AppendUint64([]byte{'B'}, uint64(commit))
	m = be.AppendUint64(m, 1_000_000)
	return be.AppendUint32(m, xid)
}

func commitMessage(commit, end pg.LSN) []byte {
	m := be.AppendUint64([]byte{'C', 0}, uint64(commit))
	m = be.AppendUint64(m, uint64(end))
	return be.AppendUint64(m, 1_000_000)
}

func relationMessage(oid uint32, schema, table string, columns ...string) []byte {
	m := be.AppendUint32([]byte{'R'}, oid)
	m = append(append(m, schema...), 0)
	m = append(append(m, table...), 0, 'd')
	m = be.AppendUint16(m, uint16(len(columns)))
	for i, c := range columns {
		m = append(m, boolByte(i == 0))
		m = append(append(m, c...), 0)
		m = be.AppendUint32(m, 25)
		m = be.AppendUint32(m, ^uint32(0))
	}
	return m
}

func insertMessage(oid uint32, row pg.Row) []byte {
	m := be.AppendUint32([]byte{'I'}, oid)
	return appendTuple(append(m, 'N'), row)
}

func updateMessage(oid uint32, old byte, before, after pg.Row) []byte {
	m := be.AppendUint32([]byte{'U'}, oid)
	if old != 0 {
		m = appendTuple(append(m, old), before)
	}
	return appendTuple(append(m, 'N'), after)
}

func deleteMessage(oid uint32, old byte, row pg.Row) []byte {
	m := be.AppendUint32([]byte{'D'}, oid)
	return appendTuple(append(m, old), row)
}

func truncateMessage(flags byte, oids ...uint32) []byte {
	m := be.AppendUint32([]byte{'T'}, uint32(len(oids)))
	m = append(m, flags)
	for _, oid := range oids {
		m = be.AppendUint32(m, oid)
	}
	return m
}

func logicalMessage(flags byte, lsn pg.LSN, prefix, content string) []byte {
	m := be.AppendUint64([]byte{'M', flags}, uint64(lsn))
	m = append(append(m, prefix...), 0)
	m = be.AppendUint32(m, uint32(len(content)))
	return append(m, content...)
}

func appendTuple(m []byte, row pg.Row) []byte {
	m = be.AppendUint16(m, uint16(len(row)))
	for _, d := range row {
		m = append(m, byte(d.Kind))
		if d.Kind == pg.Text || d.Kind == pg.Binary {
			m = be.AppendUint32(m, uint32(len(d.Bytes)))
			m = append(m, d.Bytes...)
		}
	}
	return m
}

func text(values ...string) pg.Row {
	row := pg.Row{}
	for _, v := range values {
		row = append(row, pg.Datum{Kind: pg.Text, Bytes: []byte(v)})
	}
	return row
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}
