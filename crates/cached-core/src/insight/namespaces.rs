//! The namespaces that are counted apart: a bounded number, and one for all others.

/// The most namespaces that are counted apart.
pub(super) const NAMESPACES_MAX: usize = 64;
/// The number of the one that stands for all others.
pub(super) const OTHERS: u8 = 0;
/// A namespace with less than this share of the requests gives its number away.
const SHARE_MIN: f64 = 0.001;

/// Names of namespaces, by their numbers.
pub(super) struct Namespaces {
    names: Vec<Option<Box<[u8]>>>,
}

impl Namespaces {
    pub(super) fn new() -> Namespaces {
        Namespaces { names: vec![None; NAMESPACES_MAX + 1] }
    }

    /// Returns the number of a namespace, which gets one if there is one to give.
    pub(super) fn number_of(&mut self, name: &[u8]) -> u8 {
        if name.is_empty() {
            return OTHERS;
        }
        let first = usize::from(OTHERS) + 1;
        let places = &mut self.names[first..];
        if let Some(at) = places.iter().position(|place| place.as_deref() == Some(name)) {
            return (first + at) as u8;
        }
        match places.iter().position(Option::is_none) {
            Some(at) => {
                places[at] = Some(name.into());
                (first + at) as u8
            }
            None => OTHERS,
        }
    }

    /// Returns the name behind a number; `None` for the others.
    pub(super) fn name_of(&self, number: u8) -> Option<&[u8]> {
        self.names.get(usize::from(number))?.as_deref()
    }

    /// Frees the numbers of namespaces that had too few of all requests, and returns them.
    pub(super) fn free_rare(&mut self, requests: &[f64]) -> Vec<u8> {
        let all: f64 = requests.iter().sum();
        let mut freed = Vec::new();
        for (number, place) in self.names.iter_mut().enumerate() {
            if place.is_some() && requests.get(number).copied().unwrap_or(0.0) < all * SHARE_MIN {
                *place = None;
                freed.push(number as u8);
            }
        }
        freed
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_namespaces_is_bounded_and_rare_ones_make_room() {
        let mut namespaces = Namespaces::new();
        for n in 0..NAMESPACES_MAX {
            assert_eq!(usize::from(namespaces.number_of(format!("n{n}").as_bytes())), n + 1);
        }
        assert_eq!((namespaces.number_of(b"late"), namespaces.number_of(b"")), (OTHERS, OTHERS));
        assert_eq!(namespaces.number_of(b"n7"), 8);
        let mut requests = vec![1.0; NAMESPACES_MAX + 1];
        requests[8] = 0.0;
        assert_eq!(namespaces.free_rare(&requests), [8]);
        assert_eq!((namespaces.number_of(b"late"), namespaces.name_of(8)), (8, Some(&b"late"[..])));
        assert_eq!(namespaces.name_of(OTHERS), None);
    }
}
