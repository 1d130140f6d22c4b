package layout

// handOut is the shard of every slot: what placement = "slots" looks a hash modulo the slots up in.
//
// It starts with one shard that has every slot, and lets the shards come one after another: each new one takes just its
// share, from every shard before it as much as that one has too many, its highest slots first. So the shares never
// differ by more than one slot, the table follows from (slots, shards) alone, and going from n shards to more moves no
// slot between old shards: 8 to 9 moves a ninth of the rows, where modulo moves eight ninths.
func handOut(slots, shards int) []Shard {
	owner := make([]Shard, slots)
	count := make([]int, shards)
	count[0] = slots
	for newest := 1; newest < shards; newest++ {
		for slot := slots - 1; slot >= 0; slot-- {
			if old := owner[slot]; int(old) < newest && count[old] > share(slots, newest+1, int(old)) {
				count[old]--
				count[newest]++
				owner[slot] = Shard(newest)
			}
		}
	}
	return owner
}

// share is how many slots a shard has among so many: the first ones have what does not divide evenly.
func share(slots, shards, shard int) int {
	if shard < slots%shards {
		return slots/shards + 1
	}
	return slots / shards
}
