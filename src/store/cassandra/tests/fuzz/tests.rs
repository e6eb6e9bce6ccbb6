use proptest::prelude::*;

use super::*;
use crate::store::tests::chance::any_state;

proptest! {
    #[test]
    fn a_state_survives_its_rows(state in any_state()) {
        prop_assert_eq!(written_and_read(&state), Ok(state));
    }

    #[test]
    fn a_state_without_one_of_its_rows_is_damaged(state in any_state(), lost in any::<prop::sample::Index>()) {
        let (first, mut entries) = rows(&state).unwrap();
        // The first one is that above all entries, which every key has.
        prop_assume!(entries.len() > 1);
        entries.remove(1 + lost.index(entries.len() - 1));
        let first = First::decode(first).unwrap();
        prop_assert!(first.with_entries(entries).is_err());
    }
}
