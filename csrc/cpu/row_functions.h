// The functions of rows of one instruction set. Included by instruction_set.h.

template <class T> using ToLengthOne = UnitRow<T, Map::identity, false>;
template <class T> using EluToLengthOne = UnitRow<T, Map::elu, false>;
template <class T> using ToRmsOne = UnitRow<T, Map::identity, true>;

template <class T>
constexpr RowFunctions<T> row_functions{
    {SoftmaxPair<T>::forward, ToLengthOne<T>::forward, EluToLengthOne<T>::forward, ToRmsOne<T>::forward},
    {SoftmaxPair<T>::backward, ToLengthOne<T>::backward, EluToLengthOne<T>::backward, ToRmsOne<T>::backward}};
