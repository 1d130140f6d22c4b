// Package forecast owns what is foretold of a move before it begins: how long the copy and the indexes will take, how much
// log the sources keep meanwhile and whether they have room for it, whether the stream will catch up with the writers, and
// how long a freeze will wait for them. It measures on the user's own servers: a small part of the copy is made for real, by as many
// sessions as the copy will have, and taken back.
//
// It does not know how rows are placed or followed.
package forecast
