use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::lock::ReplicaId;
use crate::store::tests::chance::any_state;
use crate::store::{Cell, SessionRow};

prop_compose! {
    fn any_session()(
        (ttl_ms, disconnect_grace_ms) in any::<(u32, u32)>(),
        replica in any::<u128>(),
        epoch in 1..=u32::MAX,
        open in any::<bool>(),
        identity in any::<String>(),
        owner in any::<String>(),
        created_at_ms in any::<i64>(),
    ) -> SessionRow {
        SessionRow {
            id: SessionId(Uuid::from_u128(1)),
            ttl_ms,
            disconnect_grace_ms,
            replica: ReplicaId(Uuid::from_u128(replica)),
            epoch,
            open,
            identity,
            owner,
            created_at_ms,
        }
    }
}

proptest! {
    #[test]
    fn a_state_survives_its_records(state in any_state()) {
        prop_assert_eq!(state.check(), Ok(()));
        prop_assert_eq!(decode_state(&encode_state(&state)), Ok(state));
    }

    #[test]
    fn a_state_without_one_of_its_entries_is_damaged(state in any_state(), lost in any::<prop::sample::Index>()) {
        prop_assume!(!state.entries.is_empty());
        let mut left = state.entries.clone();
        left.remove(lost.index(left.len()));
        let read = LockRow::decode(&encode_lock(&state)).and_then(|row| row.with_entries(left));
        prop_assert!(read.is_err());
    }

    #[test]
    fn a_value_survives_its_record(value in proptest::option::of(any::<Vec<u8>>()), timestamp in any::<u64>()) {
        let cell = Cell { value: value.map(Bytes::from), timestamp };
        prop_assert_eq!(decode_cell(&encode_cell(&cell)), Ok(cell));
    }

    #[test]
    fn a_session_survives_its_record(session in any_session()) {
        prop_assert_eq!(decode_session(session.id, &encode_session(&session)), Ok(session));
    }
}
