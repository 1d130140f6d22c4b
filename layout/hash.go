package layout

import (
	"encoding/binary"
	"math"
	"math/bits"
)

const (
	// partitionSeed is PostgreSQL's HASH_PARTITION_SEED.
	partitionSeed = 0x7A5B22367996DCFD
	// combineStep is the constant of PostgreSQL's hash_combine64.
	combineStep = 0x49a0f4dd15e5a8e3
	// lookup3Start is the internal state Bob Jenkins' lookup3 starts from, with PostgreSQL's addition.
	lookup3Start = 0x9e3779b9 + 3923095
)

// combine adds one column's hash to a row's, as hash_combine64 does. A NULL column is left out by the caller.
func combine(row, column uint64) uint64 {
	return row ^ (column + combineStep + row<<54 + row>>7)
}

// hash is the seeded 64-bit hash PostgreSQL's hash operator class of the type gives.
func (t keyType) hash(v value) uint64 {
	if t == typeServer {
		return uint64(v.n)
	}
	switch t.class() {
	case classBytes, classNet:
		return hashBytes(v.b, partitionSeed)
	case classFloat:
		return hashFloat(math.Float64frombits(uint64(v.n)))
	case classNumeric:
		return hashNumeric(v)
	case classTimeTZ:
		return hashInt(v.n) ^ hashWord(uint32(v.x))
	default: // every integer, and interval by the low half of its length
		return hashInt(v.n)
	}
}

// TextHash is the partition hash of one text column.
func TextHash(s string) uint64 { return combine(0, hashBytes([]byte(s), partitionSeed)) }

// hashInt is hashint8extended: values that fit a smaller integer hash as they do there.
func hashInt(n int64) uint64 {
	low, high := uint32(n), uint32(n>>32)
	if n < 0 {
		high = ^high
	}
	return hashWord(low ^ high)
}

// hashFloat is hashfloat8extended: both zeros and all NaNs are one value each.
func hashFloat(f float64) uint64 {
	if f == 0 {
		return partitionSeed
	}
	image := math.Float64bits(f)
	if f != f {
		image = canonicalNaN
	}
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], image)
	return hashBytes(b[:], partitionSeed)
}

const canonicalNaN = 0x7ff8000000000000

// hashNumeric is hash_numeric_extended: sign and scale are no part of the hash.
func hashNumeric(v value) uint64 {
	switch v.x {
	case numericZero:
		return partitionSeed - 1
	case numericMinus, numericPlus:
		return hashBytes(v.b, partitionSeed) ^ uint64(v.n)
	default:
		return partitionSeed
	}
}

// hashWord is hash_bytes_uint32_extended under the partition seed.
func hashWord(k uint32) uint64 {
	a, b, c := start(4, partitionSeed)
	return final(a+k, b, c)
}

// hashBytes is hash_bytes_extended on a little-endian server.
func hashBytes(k []byte, seed uint64) uint64 {
	a, b, c := start(len(k), seed)
	for ; len(k) >= 12; k = k[12:] {
		a += binary.LittleEndian.Uint32(k)
		b += binary.LittleEndian.Uint32(k[4:])
		c += binary.LittleEndian.Uint32(k[8:])
		a, b, c = mix(a, b, c)
	}
	// The low byte of c stays free in the tail: the length is in the start value.
	if len(k) >= 8 {
		b += binary.LittleEndian.Uint32(k[4:])
		c += tail(k[8:]) << 8
	} else if len(k) > 4 {
		b += tail(k[4:])
	}
	if len(k) >= 4 {
		a += binary.LittleEndian.Uint32(k)
	} else {
		a += tail(k)
	}
	return final(a, b, c)
}

// tail reads up to three bytes, the first lowest.
func tail(k []byte) (n uint32) {
	for i, x := range k {
		n |= uint32(x) << (8 * i)
	}
	return n
}

func start(length int, seed uint64) (a, b, c uint32) {
	a = lookup3Start + uint32(length)
	b, c = a, a
	if seed != 0 {
		a, b, c = mix(a+uint32(seed>>32), b+uint32(seed), c)
	}
	return a, b, c
}

func mix(a, b, c uint32) (uint32, uint32, uint32) {
	a = (a - c) ^ bits.RotateLeft32(c, 4)
	c += b
	b = (b - a) ^ bits.RotateLeft32(a, 6)
	a += c
	c = (c - b) ^ bits.RotateLeft32(b, 8)
	b += a
	a = (a - c) ^ bits.RotateLeft32(c, 16)
	c += b
	b = (b - a) ^ bits.RotateLeft32(a, 19)
	a += c
	c = (c - b) ^ bits.RotateLeft32(b, 4)
	b += a
	return a, b, c
}

func final(a, b, c uint32) uint64 {
	c = (c ^ b) - bits.RotateLeft32(b, 14)
	a = (a ^ c) - bits.RotateLeft32(c, 11)
	b = (b ^ a) - bits.RotateLeft32(a, 25)
	c = (c ^ b) - bits.RotateLeft32(b, 16)
	a = (a ^ c) - bits.RotateLeft32(c, 4)
	b = (b ^ a) - bits.RotateLeft32(a, 14)
	c = (c ^ b) - bits.RotateLeft32(b, 24)
	return uint64(b)<<32 | uint64(c)
}
