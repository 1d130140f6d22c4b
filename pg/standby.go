package pg

// StandbysSQL is what a leader says of its streaming standbys: n, how many there are, and flushed, the position the
// foremost of them has flushed. Readers of a logical slot are none, nor are programs that only keep the log. A role without
// pg_monitor sees none: unseen counts who is there and tells nothing.
const StandbysSQL = `(select count(*) filter (where r.state = 'streaming') as n, coalesce(max(r.flush_lsn) filter (where r.state = 'streaming'), '0/0') as flushed,
		count(*) filter (where r.state is null) as unseen
	from pg_stat_replication r
	where coalesce(r.application_name, '') not in ('pg_basebackup', 'pg_receivewal')
		and not exists (select from pg_replication_slots s where s.active_pid = r.pid and s.slot_type = 'logical')) standbys`
