package replicator

import (
	"fmt"
	"time"

	"pgreshard/pg"
)

// DecodeError is a message of the stream that is not what the protocol or the messages before it allow. Nothing after
// it can be trusted, so the stream ends; it holds no row value.
type DecodeError struct {
	Type   byte   // the message's type byte, 0 where the message is empty
	Offset int    // byte of the message at which reading stopped
	LSN    pg.LSN // where the server said the message starts in the log; 0 for Relation and Type
	Reason string
}

func (e *DecodeError) Error() string {
	return fmt.Sprintf("replication message %q at %s, byte %d: %s", rune(e.Type), e.LSN, e.Offset, e.Reason)
}

// decoder turns pgoutput messages (protocol version 1, messages on) into Changes of the block being filled.
type decoder struct {
	slab
	relations map[uint32]*pg.Relation
	last      *pg.Relation // the relation of the last row: most rows follow one of the same table
	tx        *pg.Tx       // the open transaction, nil between COMMIT and BEGIN
	committed pg.LSN       // end of the last transaction
	at        time.Time    // when it committed, by the source's clock
}

func newDecoder() *decoder {
	return &decoder{relations: map[uint32]*pg.Relation{}}
}

// decode appends what one message says to the block. msg is not kept.
func (d *decoder) decode(lsn pg.LSN, msg []byte) error {
	if len(msg) == 0 {
		return &DecodeError{LSN: lsn, Reason: "empty message"}
	}
	r := reader{msg: msg, at: 1}
	switch msg[0] {
	case 'I', 'U', 'D':
		// The only copy a row's bytes are given: the message lives in the connection's buffer.
		r.msg = d.keep(msg)
		d.row(&r)
	case 'B':
		d.begin(&r)
	case 'C':
		d.commit(&r)
	case 'R':
		d.relation(&r)
	case 'T':
		d.truncate(&r)
	case 'M':
		r.msg = d.keep(msg)
		d.message(&r)
	case 'O': // where a transaction first happened, if not here
		r.uint64()
		_ = r.string()
		r.end()
	case 'Y': // a type's name; columns are matched by table and name, types come from the catalog
		r.uint32()
		_, _ = r.string(), r.string()
		r.end()
	default:
		r.at = 0
		r.fail("unknown message type")
	}
	if r.why != "" {
		return &DecodeError{Type: msg[0], Offset: r.at, LSN: lsn, Reason: r.why}
	}
	return nil
}

func (d *decoder) begin(r *reader) {
	if d.tx != nil {
		r.fail("BEGIN inside a transaction")
		return
	}
	commit, micros, xid := r.uint64(), r.uint64(), r.uint32()
	if !r.end() {
		return
	}
	d.tx = d.newTx(pg.Tx{Xid: xid, Commit: pg.LSN(commit), Time: serverTime(micros)})
	d.add().Op = pg.OpBegin
	d.change().Tx = d.tx
}

// commit hands out a Tx of its own: the one of the changes before it may already be read elsewhere.
func (d *decoder) commit(r *reader) {
	flags, commit, end, micros := r.byte(), r.uint64(), r.uint64(), r.uint64()
	switch {
	case !r.end():
	case d.tx == nil:
		r.fail("COMMIT outside a transaction")
	case flags != 0:
		r.fail("COMMIT with unknown flags")
	case pg.LSN(commit) != d.tx.Commit:
		r.fail("COMMIT of another transaction than the one begun")
	case end <= commit:
		r.fail("COMMIT that ends before it starts")
	default:
		tx := *d.tx
		tx.End, tx.Time = pg.LSN(end), serverTime(micros)
		d.tx, d.committed, d.at = nil, tx.End, tx.Time
		d.add().Op = pg.OpCommit
		d.change().Tx = d.newTx(tx)
	}
}

// relation makes a new entry even where nothing changed: blocks already handed over hold the old one.
func (d *decoder) relation(r *reader) {
	rel := &pg.Relation{OID: r.uint32()}
	rel.Name.Schema, rel.Name.Table = r.string(), r.string()
	if rel.Name.Schema == "" {
		rel.Name.Schema = "pg_catalog" // the protocol's abbreviation
	}
	rel.Replica = pg.ReplicaIdentity(r.byte())
	n := int(r.uint16())
	if n > len(r.msg)-r.at { // a column takes more than a byte
		r.fail("more columns than bytes")
		return
	}
	rel.Columns = make([]pg.RelationColumn, n)
	for i := range rel.Columns {
		flags := r.byte()
		rel.Columns[i] = pg.RelationColumn{
			Key: flags&1 != 0, Name: r.string(), TypeOID: r.uint32(), Typmod: int32(r.uint32()),
		}
	}
	if r.end() {
		d.relations[rel.OID], d.last = rel, nil
	}
}

func (d *decoder) truncate(r *reader) {
	n, flags := r.uint32(), r.byte()
	switch {
	case r.why != "":
		return
	case d.tx == nil:
		r.fail("TRUNCATE outside a transaction")
		return
	case n == 0 || uint64(n)*4 != uint64(len(r.msg)-r.at):
		r.fail("number of tables does not match the message's length")
		return
	case flags&^3 != 0:
		r.fail("TRUNCATE with unknown flags")
		return
	}
	t := &pg.Truncate{Relations: make([]*pg.Relation, n), Cascade: flags&1 != 0, RestartIdentity: flags&2 != 0}
	for i := range t.Relations {
		if t.Relations[i] = d.relations[r.uint32()]; t.Relations[i] == nil {
			r.fail("TRUNCATE of a table no Relation message has described")
			return
		}
	}
	c := d.add()
	c.Op, c.Tx, c.Truncate = pg.OpTruncate, d.tx, t
}

func (d *decoder) message(r *reader) {
	flags, lsn := r.byte(), r.uint64()
	prefix, n := r.string(), r.uint32()
	content := r.bytes(n)
	switch {
	case !r.end():
		return
	case flags&^1 != 0:
		r.fail("logical message with unknown flags")
		return
	case flags == 1 && d.tx == nil:
		r.fail("transactional message outside a transaction")
		return
	}
	c := d.add()
	c.Op = pg.OpMessage
	c.Message = &pg.Message{Transactional: flags == 1, Prefix: prefix, Content: content, LSN: pg.LSN(lsn)}
	if flags == 1 {
		c.Tx = d.tx
	}
}

const unixEpochToPostgres = 946684800 * 1e6 // microseconds from 1970 to 2000

func serverTime(micros uint64) time.Time {
	return time.UnixMicro(int64(micros) + unixEpochToPostgres).UTC()
}
