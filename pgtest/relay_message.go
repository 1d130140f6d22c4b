package pgtest

import (
	"encoding/binary"
	"fmt"
	"time"

	"pgreshard/pg"

	"github.com/jackc/pgproto3/v2"
)

// Message is one protocol message on its way.
type Message struct {
	Direction  Direction
	Connection int    // number of the connection since the relay began, from 1
	Type       string // as the protocol documentation names it
	Inner      string // in replication, what CopyData carries: XLogData, PrimaryKeepalive, StandbyStatusUpdate, …
	Innermost  string // what XLogData carries of pgoutput: XLogData.Begin, XLogData.Insert, …
	Size       int    // bytes on the wire

	letter  byte   // 0 for packets without a type
	startup int    // which of startupTypes, for those
	body    []byte // its beginning at least; valid until the next message is read
	passed  int    // bytes taken from the reader
}

// startupTypes are the packets without a type that are passed on.
var startupTypes = [2]string{"StartupMessage", "CancelRequest"}

// clientTypes and serverTypes are the messages of protocol 3 by their first byte.
var clientTypes = [256]string{
	'B': "Bind", 'C': "Close", 'D': "Describe", 'E': "Execute", 'F': "FunctionCall", 'H': "Flush", 'P': "Parse",
	'Q': "Query", 'S': "Sync", 'X': "Terminate", 'c': "CopyDone", 'd': "CopyData", 'f': "CopyFail", 'p': "PasswordMessage",
}

var serverTypes = [256]string{
	'1': "ParseComplete", '2': "BindComplete", '3': "CloseComplete", 'A': "NotificationResponse", 'C': "CommandComplete",
	'D': "DataRow", 'E': "ErrorResponse", 'G': "CopyInResponse", 'H': "CopyOutResponse", 'I': "EmptyQueryResponse",
	'K': "BackendKeyData", 'N': "NoticeResponse", 'R': "Authentication", 'S': "ParameterStatus", 'T': "RowDescription",
	'V': "FunctionCallResponse", 'W': "CopyBothResponse", 'Z': "ReadyForQuery", 'c': "CopyDone", 'd': "CopyData",
	'n': "NoData", 's': "PortalSuspended", 't': "ParameterDescription", 'v': "NegotiateProtocolVersion",
}

// replicationTypes are the messages inside CopyData while CopyBoth is on.
var replicationTypes = [2][256]string{
	ToServer: {'r': "StandbyStatusUpdate", 'h': "HotStandbyFeedback", 'p': "PrimaryStatusRequest"},
	ToClient: {'w': "XLogData", 'k': "PrimaryKeepalive", 's': "PrimaryStatusUpdate"},
}

// outputTypes are pgoutput's messages.
var outputTypes = [256]string{
	'B': "XLogData.Begin", 'C': "XLogData.Commit", 'D': "XLogData.Delete", 'I': "XLogData.Insert", 'M': "XLogData.Message",
	'O': "XLogData.Origin", 'R': "XLogData.Relation", 'T': "XLogData.Truncate", 'U': "XLogData.Update", 'Y': "XLogData.Type",
	'S': "XLogData.StreamStart", 'E': "XLogData.StreamStop", 'c': "XLogData.StreamCommit", 'A': "XLogData.StreamAbort",
	'b': "XLogData.BeginPrepare", 'P': "XLogData.Prepare", 'K': "XLogData.CommitPrepared", 'r': "XLogData.RollbackPrepared",
}

// asks are the client's messages after which it waits for an answer.
var asks = [256]bool{'Q': true, 'S': true, 'H': true, 'F': true, 'c': true, 'f': true, 'p': true}

// xlogDataHead is 'w', three eight-byte fields, then pgoutput's letter.
const xlogDataHead = 25

// identify names a message and follows what it means for the connection.
func (l *link) identify(d Direction, letter byte, body []byte, size int) Message {
	m := Message{Direction: d, Connection: l.number, Size: size, letter: letter, body: body}
	if d == ToServer {
		m.Type = clientTypes[letter]
	} else {
		m.Type = serverTypes[letter]
	}
	if m.Type == "" {
		m.Type = fmt.Sprintf("unknown(%q)", letter)
	}
	switch {
	case d == ToClient && letter == 'W':
		l.copyBoth.Store(true)
	case d == ToClient && letter == 'Z':
		l.copyBoth.Store(false)
	case letter == 'd' && len(body) > 0 && l.copyBoth.Load():
		m.Inner = replicationTypes[d][body[0]]
		if m.Inner == "XLogData" && len(body) > xlogDataHead {
			m.Innermost = outputTypes[body[xlogDataHead]]
		}
	}
	return m
}

// observe counts a message and prints it where that is wanted.
func (r *Relay) observe(l *link, m *Message) {
	m.Connection = l.number
	r.counts.Load().add(l, m)
	if !r.prints.Load() {
		return
	}
	r.printing.Lock()
	defer r.printing.Unlock()
	if r.print != nil {
		fmt.Fprintf(r.print, "%s connection %d %s: %s\n", time.Now().Format("15:04:05.000000"), l.number, m.Direction, m)
	}
}

// String describes a message by type, size and names; values, parameters and literals are left out.
func (m *Message) String() string {
	name := m.Type
	if m.Inner != "" {
		name = m.Inner
	}
	if m.Innermost != "" {
		name = m.Innermost
	}
	text := fmt.Sprintf("%s %d B", name, m.Size)
	if about := m.about(); about != "" {
		text += " " + about
	}
	return text
}

// about decodes what is worth knowing of a message that is there as a whole.
func (m *Message) about() string {
	if len(m.body) != m.Size-5 {
		return ""
	}
	if m.Inner != "" {
		return m.aboutReplication()
	}
	decoded, err := m.decode()
	if err != nil {
		return "undecodable"
	}
	switch d := decoded.(type) {
	case *pgproto3.Query:
		return masked(d.String)
	case *pgproto3.Parse:
		return fmt.Sprintf("statement %q: %s", d.Name, masked(d.Query))
	case *pgproto3.Bind:
		return fmt.Sprintf("statement %q, parameter sizes %v", d.PreparedStatement, sizes(d.Parameters))
	case *pgproto3.DataRow:
		return fmt.Sprintf("column sizes %v", sizes(d.Values))
	case *pgproto3.RowDescription:
		return fmt.Sprintf("%d columns", len(d.Fields))
	case *pgproto3.CommandComplete:
		return string(d.CommandTag)
	case *pgproto3.ErrorResponse:
		return d.Severity + " " + d.Code
	case *pgproto3.NoticeResponse:
		return d.Severity + " " + d.Code
	case *pgproto3.ReadyForQuery:
		return string(d.TxStatus)
	case *pgproto3.ParameterStatus:
		return d.Name
	}
	return ""
}

// decode uses pgproto3's types; a message that has no detail worth printing is nil.
func (m *Message) decode() (pgproto3.Message, error) {
	var d pgproto3.Message
	switch {
	case m.Direction == ToServer && m.letter == 'Q':
		d = &pgproto3.Query{}
	case m.Direction == ToServer && m.letter == 'P':
		d = &pgproto3.Parse{}
	case m.Direction == ToServer && m.letter == 'B':
		d = &pgproto3.Bind{}
	case m.Direction == ToServer:
		return nil, nil
	case m.letter == 'D':
		d = &pgproto3.DataRow{}
	case m.letter == 'T':
		d = &pgproto3.RowDescription{}
	case m.letter == 'C':
		d = &pgproto3.CommandComplete{}
	case m.letter == 'E':
		d = &pgproto3.ErrorResponse{}
	case m.letter == 'N':
		d = &pgproto3.NoticeResponse{}
	case m.letter == 'Z':
		d = &pgproto3.ReadyForQuery{}
	case m.letter == 'S':
		d = &pgproto3.ParameterStatus{}
	default:
		return nil, nil
	}
	return d, d.Decode(m.body)
}

// aboutReplication shows the positions a replication message carries.
func (m *Message) aboutReplication() string {
	position := func(at int) pg.LSN { return pg.LSN(binary.BigEndian.Uint64(m.body[at:])) }
	switch {
	case m.Inner == "XLogData" && len(m.body) >= xlogDataHead:
		return fmt.Sprintf("start %s, server's end %s", position(1), position(9))
	case m.Inner == "PrimaryKeepalive" && len(m.body) == 18:
		return fmt.Sprintf("server's end %s, reply wanted %d", position(1), m.body[17])
	case m.Inner == "StandbyStatusUpdate" && len(m.body) == 34:
		return fmt.Sprintf("written %s, flushed %s, applied %s, reply wanted %d", position(1), position(9), position(17), m.body[33])
	}
	return ""
}

func sizes(values [][]byte) []int {
	n := make([]int, len(values))
	for i, v := range values {
		n[i] = len(v)
		if v == nil {
			n[i] = -1 // NULL
		}
	}
	return n
}
