// Package pg is the ground floor: the words every other package speaks (Name, Table, Row, Change, LSN), what the
// catalog of a server says about its tables, and how a session is opened so that nothing set on a role or a database
// can change what it prints or end it early.
//
// It knows nothing of layouts, phases or the configuration file.
package pg
