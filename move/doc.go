// Package move runs one move from start to end: it decides which phase comes next, holds the one retry loop, makes the
// switch, and cleans up. Everything it must remember is in the databases, so a killed worker is started again with the
// same command and goes on.
//
// It does not know protocol bytes, how rows are read or written, or how a status is shown.
package move
